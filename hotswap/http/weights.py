"""Routes that change the weights or show them, in the form of SGLang and GR."""

from __future__ import annotations

from functools import partial
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from hotswap.errors import UpdateRejected
from hotswap.http.disconnect import until_disconnect
from hotswap.http.errors import NoSuchWeight, NotFound, RequestInvalid
from hotswap.http.json_body import arguments
from hotswap.http.replies import Json
from hotswap.http.schemas import ChecksumBody, DiskUpdateBody, WeightByNameBody, label
from hotswap.http.served import Served, served
from hotswap.http.weight_rows import shown_rows
from hotswap.plugins import Plugins, missing_strategy_message
from hotswap.seams import Inspector
from hotswap.types import LoadMode, Placement, Update, UpdateReport

__all__ = [
    "get_weight_version",
    "get_weights_by_name",
    "rank_checksum",
    "update_weights_from_disk",
    "weights_checker",
]

_ACTIONS = ("checksum",)


async def update_weights_from_disk(request: Request) -> Response:
    """Replace the weights with those of a checkpoint directory."""
    serving = served(request)
    body = await arguments(
        request, DiskUpdateBody, limit_bytes=serving.settings.max_http_request_bytes
    )
    update = Update(
        source=body.source(),
        strategy=_installed("disk", serving.plugins),
        mode=LoadMode(serving.settings.load_mode),
        version=label(body.weight_version),
        token_step=body.token_step,
        flush_cache=body.flush_cache,
        pause_mode=body.swap_mode(),
    )
    report = await until_disconnect(request.receive, partial(serving.commands.update, update))
    serving.note_source(report.stamp.epoch, update.source)
    message = serving.dialect.updated(source=update.source, version=update.version)
    return Json({"message": message, "model_dir": update.source, **_report_body(report)})


def _installed(strategy: str, plugins: Plugins) -> str:
    if strategy not in plugins.strategies:
        raise UpdateRejected(missing_strategy_message(strategy, plugins))
    return strategy


def _report_body(report: UpdateReport) -> dict[str, object]:
    """What every successful update says of itself."""
    return {
        "success": True,
        "tensors_loaded": report.tensors_applied,
        "flushed_cache": report.flushed_cache,
        "entries_cleared": report.entries_cleared,
        "num_aborted_requests": report.num_aborted_requests,
        "num_paused_requests": report.num_paused_requests,
        "weight_version": report.stamp.version,
        "token_step": report.stamp.token_step,
        "weight_update_count": report.stamp.update_count,
        "weight_epoch": report.stamp.epoch,
        "elapsed_ms": report.elapsed_ms,
        "staged_ms": report.staged_ms,
        "paused_ms": report.paused_ms,
        "bytes": report.bytes_applied,
        "mode": report.load_mode,
        "missing": report.missing,
        "unknown": report.unknown,
    }


async def get_weight_version(request: Request) -> Response:
    """Which weights are live. Never waits."""
    stamp = served(request).commands.stamp
    return Json(
        {
            "weight_version": stamp.version,
            "token_step": stamp.token_step,
            "weight_update_count": stamp.update_count,
            "weight_epoch": stamp.epoch,
        }
    )


async def get_weights_by_name(request: Request) -> Response:
    """The first rows of one tensor, as nested lists."""
    serving = served(request)
    body = await arguments(
        request, WeightByNameBody, limit_bytes=serving.settings.max_http_request_bytes
    )
    inspector = _inspector(serving)
    try:
        tensor = await shown_rows(inspector, body.name, body.truncate_size)
    except KeyError as error:
        raise NoSuchWeight(
            f"no parameter or buffer {body.name!r} in this model; "
            "/weights_checker lists the live names"
        ) from error
    # Starlette makes the pieces one by one on a worker thread, as fast as they are read.
    return StreamingResponse(serving.dialect.weight_pieces(tensor), media_type=Json.media_type)


async def weights_checker(request: Request) -> Response:
    """Checksums of every parameter and buffer."""
    serving = served(request)
    body = await arguments(
        request, ChecksumBody, limit_bytes=serving.settings.max_http_request_bytes
    )
    if body.action not in _ACTIONS:
        raise RequestInvalid(
            f"unsupported action {body.action!r}; supported: {', '.join(_ACTIONS)}"
        )
    checksums = await until_disconnect(request.receive, _inspector(serving).checksums)
    of_rank = rank_checksum(checksums)
    return Json(
        {
            "success": True,
            "message": f"Computed checksums of {len(checksums)} tensors.",
            "ranks": [
                {
                    "checksums": checksums,
                    "per_gpu_checksum": of_rank,
                    "parallelism_info": _parallelism(serving.placement),
                }
            ],
            "per_engine_checksum": sha256(of_rank.encode()).hexdigest(),
        }
    )


def rank_checksum(checksums: dict[str, str]) -> str:
    """One checksum of a rank: over name and checksum of each tensor, by sorted name."""
    digest = sha256()
    for name in sorted(checksums):
        digest.update(f"{name}{checksums[name]}".encode())
    return digest.hexdigest()


def _inspector(serving: Served) -> Inspector:
    if not isinstance(serving.engine, Inspector):
        raise NotFound("this server's engine does not show its weights")
    return serving.engine


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
