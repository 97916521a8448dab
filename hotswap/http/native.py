"""hotswap's own routes, under ``/hotswap/v1``."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from hotswap.http.replies import Json
from hotswap.http.served import served
from hotswap.http.status import follow_body, not_ready, weights_body

__all__ = ["state"]


async def state(request: Request) -> Response:
    """The machine: its facts, the state derived from them, and which weights are live."""
    serving = served(request)
    machine = serving.commands.machine
    return Json(
        {
            "state": machine.state,
            "facts": machine.facts,
            "reasons": not_ready(serving),
            "weights": weights_body(serving),
            "updates": serving.commands.updates,
            "session": serving.commands.sessions.shown(),
            "follow": follow_body(serving),
            "in_flight": serving.engine.in_flight,
            # Flat over many updates, or something leaks.
            "tasks": len(asyncio.all_tasks()),
        }
    )
