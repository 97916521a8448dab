"""Routes that change the weights or show them, in the form of SGLang and GR."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from hotswap.errors import UpdateRejected
from hotswap.foreign import words_of
from hotswap.http.disconnect import until_disconnect
from hotswap.http.errors import NoSuchWeight
from hotswap.http.json_body import arguments
from hotswap.http.replies import Json
from hotswap.http.schemas import DiskUpdateBody, WeightByNameBody, label
from hotswap.http.served import inspector_of, served
from hotswap.http.update_replies import report_body
from hotswap.http.weight_rows import shown_rows
from hotswap.plugins import Plugins, missing_strategy_message
from hotswap.types import LoadMode, Update

__all__ = ["get_weights_by_name", "update_weights_from_disk"]


async def update_weights_from_disk(request: Request) -> Response:
    """Replace the weights with those of a checkpoint directory."""
    serving = served(request)
    body = await arguments(
        request, DiskUpdateBody, limit_bytes=serving.settings.max_http_request_bytes
    )
    update = Update(
        source=body.source(),
        strategy=_installed(body.strategy or serving.settings.load_strategy, serving.plugins),
        mode=LoadMode(serving.settings.load_mode),
        version=label(body.weight_version),
        token_step=body.token_step,
        flush_cache=body.flush_cache,
        pause_mode=body.swap_mode(),
    )
    report = await until_disconnect(request.receive, partial(serving.commands.update, update))
    shown = words_of(update.source)
    serving.note_source(report.stamp.epoch, shown)
    serving.commands.sessions.note_update()
    message = serving.dialect.updated(source=shown, version=update.version)
    return Json({"message": message, "model_dir": shown, **report_body(report)})


def _installed(strategy: str, plugins: Plugins) -> str:
    if strategy not in plugins.strategies:
        raise UpdateRejected(missing_strategy_message(strategy, plugins))
    return strategy


async def get_weights_by_name(request: Request) -> Response:
    """The first rows of one tensor, as nested lists."""
    serving = served(request)
    body = await arguments(
        request, WeightByNameBody, limit_bytes=serving.settings.max_http_request_bytes
    )
    inspector = inspector_of(serving)
    try:
        tensor = await shown_rows(inspector, body.name, body.truncate_size)
    except KeyError as error:
        raise NoSuchWeight(
            f"no parameter or buffer {body.name!r} in this model; "
            "/weights_checker lists the live names"
        ) from error
    # Starlette makes the pieces one by one on a worker thread, as fast as they are read.
    return StreamingResponse(serving.dialect.weight_pieces(tensor), media_type=Json.media_type)
