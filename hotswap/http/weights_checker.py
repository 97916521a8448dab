"""``/weights_checker``: what the weights are, and whether an update brings them back.

The check that trainers make at their start: snapshot, reset_tensors, a full update,
compare. A snapshot is a checksum of each tensor, and no copy of the weights.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import Response

from hotswap.http.disconnect import until_disconnect
from hotswap.http.errors import NotFound, RequestInvalid, WeightsDiffer
from hotswap.http.json_body import arguments
from hotswap.http.replies import Json
from hotswap.http.schemas import CheckerBody
from hotswap.http.served import Served, inspector_of, served
from hotswap.seams import Resettable
from hotswap.state import Weights
from hotswap.types import Placement
from hotswap.weights.snapshot import WeightSnapshot, without

__all__ = ["NEVER_RESET", "rank_checksum", "weights_checker"]

NEVER_RESET = ("cos_sin_cache", "inv_freq", "freqs_cis", "_weight_fp32")
"""Parts of names that ``reset_tensors`` leaves alone, as SGLang does."""


async def weights_checker(request: Request) -> Response:
    """Do what ``action`` says. Raises: RequestInvalid naming the actions."""
    serving = served(request)
    body = await arguments(
        request, CheckerBody, limit_bytes=serving.settings.max_http_request_bytes
    )
    action = _ACTIONS.get(body.action)
    if action is None:
        supported = ", ".join(_ACTIONS)
        raise RequestInvalid(f"Unsupported action={body.action!r}, wanted one of: {supported}")
    reply = await until_disconnect(request.receive, partial(action, serving, body))
    return Json({"success": True, **reply})


async def _checksum(serving: Served, body: CheckerBody) -> dict[str, object]:
    checksums = without(await inspector_of(serving).checksums(), body.skip_tensor_list)
    of_rank = rank_checksum(checksums)
    return {
        "message": f"Computed checksums of {len(checksums)} tensors.{_warning(serving)}",
        "ranks": [
            {
                "checksums": checksums,
                "per_gpu_checksum": of_rank,
                "parallelism_info": _parallelism(serving.placement),
            }
        ],
        "per_engine_checksum": sha256(of_rank.encode()).hexdigest(),
    }


async def _snapshot(serving: Served, _body: CheckerBody) -> dict[str, object]:
    serving.snapshot = WeightSnapshot(checksums=await inspector_of(serving).checksums())
    count = len(serving.snapshot.checksums)
    return {"message": f"Took a snapshot of {count} tensors.{_warning(serving)}"}


async def _reset_tensors(serving: Served, body: CheckerBody) -> dict[str, object]:
    if not isinstance(serving.engine, Resettable):
        raise NotFound("this server's engine cannot reset its weights")
    names = await serving.commands.reset(skipped=(*NEVER_RESET, *body.skip_tensor_list))
    return {
        "message": f"Reset {len(names)} tensors to noise; nothing is generated until a full update."
    }


async def _compare(serving: Served, body: CheckerBody) -> dict[str, object]:
    snapshot = serving.snapshot
    if snapshot is None:
        raise RequestInvalid('there is no snapshot to compare with; send action "snapshot" first')
    now = await inspector_of(serving).checksums()
    difference = snapshot.difference(now, skipped=body.skip_tensor_list)
    if difference is not None:
        raise WeightsDiffer(f"the weights are not those of the snapshot: {difference}")
    return {"message": f"All {len(now)} tensors are those of the snapshot."}


_ACTIONS: Mapping[str, Callable[[Served, CheckerBody], Awaitable[dict[str, object]]]] = {
    "checksum": _checksum,
    "snapshot": _snapshot,
    "reset_tensors": _reset_tensors,
    "compare": _compare,
}


def _warning(serving: Served) -> str:
    """What to know of weights that are no one checkpoint."""
    weights = serving.commands.machine.facts.weights
    return "" if weights is Weights.WHOLE else f" The weights are not whole: {weights}."


def rank_checksum(checksums: Mapping[str, str]) -> str:
    """One checksum of a rank: over name and checksum of each tensor, by sorted name."""
    digest = sha256()
    for name in sorted(checksums):
        digest.update(f"{name}{checksums[name]}".encode())
    return digest.hexdigest()


def _parallelism(placement: Placement) -> dict[str, int]:
    """SGLang's form of a placement: every rank is a tensor-parallel one."""
    rank, size = placement.rank, placement.world_size
    return {
        "tp_rank": rank,
        "tp_size": size,
        "dp_rank": 0,
        "dp_size": 1,
        "pp_rank": 0,
        "pp_size": 1,
        "rank": rank,
        "size": size,
    }
