"""The gate as a dependency of FastAPI, which enters and leaves it in other threads or tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import Depends, FastAPI
from starlette.responses import StreamingResponse

from hotswap.embed import HotSwap
from tests.unit.embed.modules import LIMIT_S, checkpoint, filled, output
from tests.unit.embed.test_hot_swap import updating


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_a_dependency_holds_the_gate_and_lets_updates_in_between(
    tmp_path: Path, kind: str
) -> None:
    module = filled(1.0)
    swap = HotSwap(module)
    app = FastAPI()

    def sync_pass() -> Iterator[None]:
        with swap.gate:
            yield

    async def async_pass() -> AsyncIterator[None]:
        async with swap.gate:
            yield

    def predict() -> list[float]:
        first = output(module)
        return [first, output(module)]

    held = Depends(sync_pass if kind == "def" else async_pass)
    app.add_api_route("/predict", predict, dependencies=[held])
    sources = [checkpoint(tmp_path / str(value), value) for value in (2.0, 3.0)]
    transport = httpx.ASGITransport(app)
    async with swap, httpx.AsyncClient(transport=transport, base_url="http://embed.test") as client:

        async def ask() -> list[float]:
            reply = await client.get("/predict")
            assert reply.status_code == 200, reply.text
            found: list[float] = reply.json()
            return found

        asked = [asyncio.create_task(ask()) for _ in range(12)]
        for number in range(4):
            report = await asyncio.wait_for(swap.update(sources[number % 2]), LIMIT_S)
            assert report.stamp.epoch == number + 1
            asked += [asyncio.create_task(ask()) for _ in range(4)]
        answers = await asyncio.wait_for(asyncio.gather(*asked), LIMIT_S)
        assert {answer[0] for answer in answers} <= {16.0, 64.0, 144.0}
        assert all(one == other for one, other in answers)
        assert repr(swap.gate) == "<ForwardGate open, 0 inside>"
        assert await ask() == [144.0, 144.0]


async def test_an_update_waits_for_a_pass_that_a_dependency_holds(tmp_path: Path) -> None:
    """Entered in one thread, computed in another, left in a third: no update in between."""
    module = filled(1.0)
    swap = HotSwap(module)
    app, computing, may_end = FastAPI(), threading.Event(), threading.Event()

    def one_pass() -> Iterator[None]:
        with swap.gate:
            yield

    def predict() -> float:
        computing.set()
        assert may_end.wait(LIMIT_S)
        return output(module)

    app.add_api_route("/predict", predict, dependencies=[Depends(one_pass)])
    transport = httpx.ASGITransport(app)
    async with swap, httpx.AsyncClient(transport=transport, base_url="http://embed.test") as client:
        asked = asyncio.create_task(client.get("/predict"))
        assert await asyncio.to_thread(computing.wait, LIMIT_S)
        begun = updating(swap)
        update = asyncio.create_task(swap.update(checkpoint(tmp_path / "b", 2.0)))
        await begun.wait()
        assert repr(swap.gate) == "<ForwardGate closing, 1 inside>"
        may_end.set()
        assert (await asyncio.wait_for(asked, LIMIT_S)).json() == 16.0
        await asyncio.wait_for(update, LIMIT_S)
        assert output(module) == 64.0


async def test_a_stream_whose_steps_run_on_several_threads_is_one_pass() -> None:
    module = filled(1.0)
    swap = HotSwap(module)
    app = FastAPI()

    def steps() -> Iterator[str]:
        with swap.gate:
            for _ in range(3):
                yield f"{output(module)} {swap.gate!r}\n"

    app.add_api_route("/stream", lambda: StreamingResponse(steps()))
    transport = httpx.ASGITransport(app)
    async with swap, httpx.AsyncClient(transport=transport, base_url="http://embed.test") as client:
        reply = await client.get("/stream")
    assert reply.text.splitlines() == ["16.0 <ForwardGate open, 1 inside>"] * 3
    assert repr(swap.gate) == "<ForwardGate open, 0 inside>"
