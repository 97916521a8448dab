"""What this server is and how busy it is, in the fields that SGLang's clients read."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from hotswap._version import __version__
from hotswap.http.replies import Json
from hotswap.http.served import Served, load_of, served

__all__ = ["get_load", "loads", "server_info"]


async def server_info(request: Request) -> Response:
    """How the server was started, flat; ``--server-info`` says what else, and wins."""
    serving = served(request)
    load = load_of(serving)
    fields: dict[str, object] = {
        **_started_with(serving),
        "port": _port(request, serving),
        "max_total_num_tokens": load.kv_tokens_total,
        "status": "ready",
        "version": __version__,
        "weight_version": serving.commands.stamp.version,
        "kv_events": None,
        "internal_states": [
            {
                "memory_usage": {"token_capacity": load.kv_tokens_total},
                "effective_max_running_requests_per_dp": serving.settings.max_running_requests,
            }
        ],
    }
    return Json({**fields, **serving.settings.server_info_fields})


def _started_with(serving: Served) -> dict[str, object]:
    settings, placement = serving.settings, serving.placement
    return {
        "model_path": serving.model_path,
        "tokenizer_path": settings.model,
        "served_model_name": serving.model_path,
        "load_format": "auto",
        "dtype": settings.dtype,
        "device": settings.device,
        "host": settings.host,
        "tp_size": placement.world_size,
        "pp_size": 1,
        "dp_size": 1,
        "ep_size": 1,
        "moe_dp_size": 1,
        "nnodes": 1,
        "node_rank": 0,
        "base_gpu_id": 0,
        "gpu_id_step": 1,
        "enable_memory_saver": False,
        "enable_return_routed_experts": False,
        "encoder_only": False,
        "disaggregation_mode": "null",
        "load_balance_method": "round_robin",
        "max_running_requests": settings.max_running_requests,
        "max_queued_requests": settings.max_queued_requests,
    }


def _port(request: Request, serving: Served) -> int:
    """The port that was asked for; where that was any, the one that it became."""
    listening: tuple[str, int | None] | None = request.scope.get("server")
    if serving.settings.port or listening is None or listening[1] is None:
        return serving.settings.port
    return listening[1]


async def loads(request: Request) -> Response:
    """How busy the one engine is; ``include`` and ``format`` change nothing."""
    serving = served(request)
    load, in_flight = load_of(serving), serving.engine.in_flight
    total = load.kv_tokens_total
    return Json(
        {
            "timestamp": datetime.now(UTC).isoformat(),
            "version": __version__,
            "dp_rank_count": 1,
            "loads": [
                {
                    "dp_rank": 0,
                    "num_reqs": in_flight.total,
                    "num_total_reqs": in_flight.total,
                    "num_running_reqs": in_flight.running,
                    "num_waiting_reqs": in_flight.waiting,
                    "num_used_tokens": load.kv_tokens_used,
                    "num_total_tokens": load.kv_tokens_used,
                    "max_total_num_tokens": total,
                    "max_running_requests": serving.settings.max_running_requests,
                    "token_usage": load.kv_tokens_used / total if total else 0.0,
                }
            ],
        }
    )


async def get_load(request: Request) -> Response:
    """The older form of :func:`loads`."""
    serving = served(request)
    in_flight = serving.engine.in_flight
    return Json(
        [
            {
                "dp_rank": 0,
                "num_reqs": in_flight.total,
                "num_waiting_reqs": in_flight.waiting,
                "num_tokens": load_of(serving).kv_tokens_used,
                "num_pending_tokens": 0,
                "ts_tic": time.perf_counter(),
            }
        ]
    )
