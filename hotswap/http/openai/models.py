"""``/v1/models``: the one model that is served, under each of its names."""

from __future__ import annotations

from pathlib import PurePath

from starlette.requests import Request
from starlette.responses import Response

from hotswap.http.openai.at_start import at_start
from hotswap.http.openai.errors import ModelNotFound
from hotswap.http.replies import Json
from hotswap.http.served import Served, served

__all__ = ["check_model", "list_models", "retrieve_model", "served_name"]


def served_name(serving: Served) -> str:
    """``--served-model-name``, else the directory of the live weights."""
    return serving.settings.served_model_name or serving.model_path


def check_model(serving: Served, name: str | None) -> str:
    """The name to answer under: ``name``, or the first of the model's for none.

    Raises: ModelNotFound.
    """
    if not name:
        return served_name(serving)
    known = _names(serving)
    if name not in known:
        raise ModelNotFound(f"the model {name!r} is not served here, wanted one of {known}")
    return name


async def list_models(request: Request) -> Response:
    """One entry."""
    serving = served(request)
    return Json({"object": "list", "data": [_entry(request, served_name(serving))]})


async def retrieve_model(request: Request) -> Response:
    """The entry, under the name that was asked for. Raises: ModelNotFound."""
    name = request.path_params["model"]
    if not name:
        raise ModelNotFound("the path ends without the name of a model")
    return Json(_entry(request, check_model(served(request), name)))


def _entry(request: Request, name: str) -> dict[str, object]:
    serving = served(request)
    stamp = serving.commands.stamp
    return {
        "id": name,
        "object": "model",
        "created": at_start(request).created,
        "owned_by": "hotswap",
        "root": serving.model_path,
        "metadata": {"weight_version": stamp.version, "weight_epoch": stamp.epoch},
    }


def _names(serving: Served) -> list[str]:
    """Every name of the model: as configured, by directory, by the directory's last part."""
    paths = [serving.model_path, serving.settings.model or ""]
    named = [serving.settings.served_model_name or "", *paths]
    named += [PurePath(path).name for path in paths]
    return list(dict.fromkeys(name for name in named if name))
