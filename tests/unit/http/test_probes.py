"""``/health_generate`` and ``/ping``: an empty body, and a status that is the truth."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from hotswap.errors import Paused, QueueFull, WeightsNotWhole
from hotswap.seams import GenerateRequest, Generation
from hotswap.state import Facts, Machine
from hotswap.testing.asgi_call import AsgiCall
from hotswap.testing.scripted_engine import ScriptedEngine
from hotswap.types import PauseMode

PROBE = "/health_generate"


class BeatingEngine(ScriptedEngine):
    """Full, or silent; ``beats`` says whether its thread turns."""

    def __init__(self, *, full: bool = False, beats: bool = True) -> None:
        super().__init__(reply=None)
        self.full, self.beats = full, beats

    def submit(self, request: GenerateRequest) -> Generation:
        if self.full:
            raise QueueFull("too many wait")
        return super().submit(request)

    async def beat(self) -> None:
        if not self.beats:
            await anyio.sleep_forever()


async def probed(serving: Any) -> int:
    reply = await serving.client.get(PROBE)
    assert reply.content == b""
    status: int = reply.status_code
    return status


async def test_ping(serving: Any) -> None:
    reply = await serving.client.get("/ping")
    assert (reply.status_code, reply.content) == (200, b"")


async def test_one_token_goes_through_the_engine(serving: Any) -> None:
    assert await probed(serving) == 200

    ((_, generation),) = serving.engine.generations.items()
    assert generation.request.sampling.max_new_tokens == 1
    assert generation.ended
    assert len(serving.app.state.served.requests) == 0


async def test_a_token_that_fails_is_not_healthy(serving: Any) -> None:
    serving.engine.reply = None
    async with AsgiCall(serving.app, "GET", PROBE) as call:
        await serving.engine.submitted.wait()
        (generation,) = serving.engine.generations.values()
        generation.finish("error")
        assert (await call.next_message())["status"] == 503


@pytest.mark.parametrize("reason", ["paused", "weights_not_whole", "sleeping"])
async def test_nothing_is_generated_where_nothing_may_be(serving: Any, reason: str) -> None:
    serving.commands.machine = Machine(Facts(gate=PauseMode.ABORT))
    serving.commands.reasons = [reason]

    assert await probed(serving) == 200
    assert serving.engine.generations == {}


@pytest.mark.parametrize("refusal", [Paused("paused"), WeightsNotWhole("torn")])
async def test_a_pause_that_comes_in_between_is_no_illness(
    serving: Any, refusal: Exception
) -> None:
    serving.commands.admission.refusal = refusal

    assert await probed(serving) == 200


async def test_a_pause_that_aborts_the_probe_is_no_illness(serving: Any) -> None:
    serving.engine.reply = None
    async with AsgiCall(serving.app, "GET", PROBE) as call:
        await serving.engine.submitted.wait()
        await serving.engine.pause(PauseMode.ABORT)
        assert (await call.next_message())["status"] == 200


async def test_a_dead_engine_is_not_healthy(serving: Any) -> None:
    serving.engine.alive = False
    assert await probed(serving) == 503


async def test_a_server_going_down_is_not_healthy(serving: Any) -> None:
    serving.app.state.served.requests.close()
    assert await probed(serving) == 503


@pytest.mark.parametrize("full", [False, True], ids=["slow", "full"])
@pytest.mark.parametrize("beats", [False, True])
async def test_a_busy_engine_is_healthy_while_its_thread_turns(
    serve: Callable[..., Any], full: bool, beats: bool
) -> None:
    serving = serve(engine=BeatingEngine(full=full, beats=beats))
    serving.app.state.served.health_s = 0.01

    assert await probed(serving) == (200 if beats else 503)
    assert all(generation.aborted.is_set() for generation in serving.engine.generations.values())


async def test_a_frozen_engine_that_cannot_beat_is_not_healthy(serve: Callable[..., Any]) -> None:
    serving = serve(engine=ScriptedEngine(reply=None))
    serving.app.state.served.health_s = 0.01

    assert await probed(serving) == 503


async def test_a_pause_while_the_probe_waits_is_no_illness(serve: Callable[..., Any]) -> None:
    serving = serve(engine=ScriptedEngine(reply=None))
    serving.app.state.served.health_s = 0.05
    async with AsgiCall(serving.app, "GET", PROBE) as call:
        await serving.engine.submitted.wait()
        serving.commands.reasons = ["paused"]
        assert (await call.next_message())["status"] == 200
