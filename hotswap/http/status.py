"""Probes and introspection. None of these waits for a command or for the engine."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from hotswap._version import __version__
from hotswap.http.replies import Json
from hotswap.http.served import Describing, Served, caches_of, served
from hotswap.http.update_replies import coverage_of

__all__ = ["follow_body", "health", "model_info", "not_ready", "ready", "status", "weights_body"]


def not_ready(serving: Served) -> list[str]:
    """Why this server should get no generation request now; empty when it should."""
    reasons = list(serving.commands.not_ready_reasons())
    if not serving.engine_alive:
        reasons.append("engine_not_running")
    if serving.requests.closed and "shutting_down" not in reasons:
        reasons.append("shutting_down")
    if serving.follower is not None and not serving.follower.status.reached:
        reasons.append("not_caught_up")
    bounds = serving.settings.max_running_requests + serving.settings.max_queued_requests
    if serving.engine.in_flight.total >= bounds:
        reasons.append("waiting_queue_full")
    return reasons


def follow_body(serving: Served) -> dict[str, object] | None:
    """How far a server is with the stream that it follows; None when it follows none."""
    return None if serving.follower is None else serving.follower.status.fields()


def weights_body(serving: Served) -> dict[str, object]:
    """Which weights are live, what the last update cost, how far chunks of a push have come."""
    stamp, last = serving.commands.stamp, serving.commands.last_update
    return {
        "weight_version": stamp.version,
        "token_step": stamp.token_step,
        "weight_update_count": stamp.update_count,
        "weight_epoch": stamp.epoch,
        "last_weight_update_ms": None if last is None else last.elapsed_ms,
        "coverage": coverage_of(serving),
    }


async def health(request: Request) -> Response:
    """200 while event loop and engine live, whatever they are doing."""
    serving = served(request)
    healthy = serving.engine_alive and not serving.requests.closed
    body = {
        "status": "ok" if healthy else "unhealthy",
        "state": serving.commands.machine.state,
        "engine_alive": serving.engine_alive,
        "shutting_down": serving.requests.closed,
    }
    return serving.dialect.health(body, status=200 if healthy else 503)


async def ready(request: Request) -> Response:
    """200 when generation is possible now, else 503 with the reasons."""
    serving = served(request)
    reasons = not_ready(serving)
    body = {
        "ready": not reasons,
        "reasons": reasons,
        "state": serving.commands.machine.state,
    }
    if "not_caught_up" in reasons:
        body["follow"] = follow_body(serving)
    return Json(body, status_code=503 if reasons else 200)


async def status(request: Request) -> Response:
    """Everything that can be said without waiting."""
    serving = served(request)
    machine = serving.commands.machine
    reasons = not_ready(serving)
    return Json(
        {
            "version": __version__,
            "state": machine.state,
            "facts": machine.facts,
            "ready": not reasons,
            "reasons": reasons,
            "weights": weights_body(serving),
            "updates": serving.commands.updates,
            "session": serving.commands.sessions.shown(),
            "in_flight": serving.engine.in_flight,
            "http_requests": len(serving.requests),
            "counters": serving.commands.counters.as_dict(),
            "cache": caches_of(serving.engine),
            "model_path": serving.model_path,
            "follow": follow_body(serving),
        }
    )


async def model_info(request: Request) -> Response:
    """What model runs; ``model_path`` follows successful disk updates."""
    serving = served(request)
    engine = serving.engine
    described = dict(engine.describe()) if isinstance(engine, Describing) else {}
    stamp = serving.commands.stamp
    return Json(
        {
            "tokenizer_path": serving.settings.model,
            "is_generation": True,
            "preferred_sampling_params": None,
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": None,
            "architectures": None,
            **described,
            "model_path": serving.model_path,
            "weight_version": stamp.version,
            "weight_epoch": stamp.epoch,
        }
    )
