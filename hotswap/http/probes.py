"""Probes whose whole answer is a status.

``/health_generate`` takes one real token through the engine, within a bound. While
nothing may be generated (paused, updating, weights not whole) it says 200 as long as
the engine lives: trainers kill a server whose probe fails, and a long pause is none.
"""

from __future__ import annotations

from functools import partial

import anyio
from starlette.requests import Request
from starlette.responses import Response

from hotswap.errors import Paused, QueueFull, WeightsNotWhole
from hotswap.http.disconnect import until_disconnect
from hotswap.http.errors import EngineDown, ShuttingDown
from hotswap.http.runs import submit_all
from hotswap.http.served import Beating, Served, served
from hotswap.seams import GenerateRequest, Generator, SamplingParams

__all__ = ["health_generate", "ping"]

_ONE_TOKEN = SamplingParams(max_new_tokens=1, ignore_eos=True)


async def ping(request: Request) -> Response:
    """200 while the event loop turns."""
    return Response()


async def health_generate(request: Request) -> Response:
    """200 when a token came, or none may come now; else 503."""
    serving = served(request)
    healthy = await until_disconnect(request.receive, partial(_healthy, serving))
    return Response(status_code=200 if healthy else 503)


async def _healthy(serving: Served) -> bool:
    engine = serving.engine
    if not serving.engine_alive or serving.requests.closed:
        return False
    if serving.commands.not_ready_reasons() or not isinstance(engine, Generator):
        return True
    with anyio.move_on_after(serving.health_s):
        try:
            return await _one_token(serving, engine)
        except QueueFull:
            return await _turns(serving)
        except (Paused, WeightsNotWhole, EngineDown, ShuttingDown) as error:
            return isinstance(error, Paused | WeightsNotWhole)
    # A pause may have come meanwhile, or the token is in line behind many others.
    return bool(serving.commands.not_ready_reasons()) or await _turns(serving)


async def _one_token(serving: Served, engine: Generator) -> bool:
    with serving.requests.reserve(None) as ticket:
        request = GenerateRequest(rid=ticket.engine_rid, input_ids=(0,), sampling=_ONE_TOKEN)
        (generation,) = await submit_all(serving, engine, [(ticket, request)])
        # The last chunk tells how it ended, with or without a token in it.
        reasons = [chunk.finish_reason async for chunk in generation]
        ticket.ended = True
    return bool(reasons) and reasons[-1] != "error"


async def _turns(serving: Served) -> bool:
    """Whether the engine's own thread gets from one forward pass to the next."""
    if not isinstance(serving.engine, Beating):
        return False
    with anyio.move_on_after(serving.health_s):
        await serving.engine.beat()
        return True
    return False
