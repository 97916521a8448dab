"""The engine's thread: its order, its end, and callers who leave."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

import anyio
import pytest

from hotswap.engine import EmbeddedEngine
from hotswap.engine.loop import EngineLoop
from hotswap.testing.endings import ENDINGS
from hotswap.types import InFlightCounts, PauseMode
from tests.unit.engine.conftest import Make
from tests.unit.engine.driving import Turnstile, chunks_of, generate, submit, tokens_of

PROMPT = [5, 6, 7, 8]


class Counting:
    """Steps that count, as long as there are some left."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.left = 0
        self.at_step: Callable[[], None] = lambda: None

    @property
    def has_work(self) -> bool:
        return self.left > 0

    def step(self) -> None:
        self.at_step()
        self.left -= 1
        self.calls.append("step")

    def publish(self) -> None:
        self.calls.append("publish")

    def shut(self, error: BaseException | None) -> None:
        self.calls.append(f"shut {error!r}")


class Stopped:
    """Work that says when it has begun, and ends when told."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.is_done = False

    def __call__(self) -> str:
        self.begun.set()
        assert self.may_end.wait(30)
        self.is_done = True
        return "done"


@pytest.fixture
def steps() -> Counting:
    return Counting()


@pytest.fixture
def loop(steps: Counting) -> Iterator[EngineLoop]:
    loop = EngineLoop(steps)
    loop.start()
    yield loop
    loop.close()


async def test_work_runs_on_the_thread_in_order(loop: EngineLoop, steps: Counting) -> None:
    names = [loop.post(lambda: threading.current_thread().name) for _ in range(3)]
    assert {future.result(30) for future in names} == {"hotswap-engine"}
    order: list[int] = []
    futures = [loop.post(partial(order.append, n)) for n in range(50)]
    futures[-1].result(30)
    assert order == list(range(50))


async def test_steps_run_between_commands(loop: EngineLoop, steps: Counting) -> None:
    stopped = Stopped()
    first = loop.post(stopped)
    begun = loop.post(lambda: steps.calls.clear())
    loop.post(lambda: setattr(steps, "left", 2))
    stopped.may_end.set()
    first.result(30)
    begun.result(30)
    while steps.left or len(steps.calls) < 5:
        await loop.call(lambda: None)
    seen = [call for call in steps.calls if call == "step"]
    assert seen == ["step", "step"]
    at = steps.calls.index("step")
    assert steps.calls[at - 1] == "publish"
    assert steps.calls[at + 1] == "publish"


async def test_an_error_reaches_the_caller_and_nobody_else(loop: EngineLoop) -> None:
    def fail() -> None:
        raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"):
        await loop.call(fail)
    assert await loop.call(lambda: 5) == 5
    assert loop.alive


async def test_cancelled_before_it_began_it_never_begins(loop: EngineLoop) -> None:
    first, second = Stopped(), Stopped()
    running = loop.post(first)
    waiting = asyncio.ensure_future(loop.call(second))
    await anyio.lowlevel.checkpoint()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    first.may_end.set()
    assert running.result(30) == "done"
    assert await loop.call(lambda: second.begun.is_set()) is False


async def test_cancelled_while_it_runs_the_caller_returns_after_it(loop: EngineLoop) -> None:
    work = Stopped()
    calling = asyncio.ensure_future(loop.call(work))
    await anyio.to_thread.run_sync(work.begun.wait, 30)
    for _ in range(3):
        calling.cancel()
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        assert not calling.done()
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert work.is_done


async def test_close_runs_what_was_posted_and_then_refuses(steps: Counting) -> None:
    loop = EngineLoop(steps)
    future = loop.post(lambda: "early")
    loop.start()
    loop.close()
    loop.close()
    assert future.result(0) == "early"
    assert steps.calls[-2:] == ["shut None", "publish"]
    assert not loop.alive
    with pytest.raises(RuntimeError, match="has ended"):
        loop.post(lambda: None)
    assert repr(loop) == "<EngineLoop not running>"


async def test_closed_without_a_start_everybody_gets_an_answer(steps: Counting) -> None:
    loop = EngineLoop(steps)
    future = loop.post(lambda: "never")
    loop.close()
    with pytest.raises(RuntimeError, match="ended before the command"):
        future.result(0)


@pytest.mark.parametrize("ending", [*ENDINGS, "StopIteration"])
async def test_a_command_that_ends_in_any_way_has_failed_and_the_thread_goes_on(
    steps: Counting, ending: str
) -> None:
    def end() -> None:
        raise ENDINGS.get(ending, StopIteration)()

    loop = EngineLoop(steps)
    loop.start()
    try:
        with pytest.raises(RuntimeError, match=f"it ended with {ending}") as caught:
            await loop.call(end)
        assert type(caught.value.__cause__).__name__ == ending
        assert await loop.call(lambda: 7) == 7
        assert loop.alive
    finally:
        loop.close()


async def test_a_thread_that_dies_tells_everybody(
    steps: Counting, caplog: pytest.LogCaptureFixture
) -> None:
    def die() -> None:
        raise SystemExit("on purpose")

    begun, steps.left, steps.at_step = Stopped(), 1, die
    loop = EngineLoop(steps)
    before = loop.post(begun)
    with caplog.at_level(logging.CRITICAL):
        loop.start()
        assert begun.begun.wait(30)
        after = loop.post(lambda: None)
        begun.may_end.set()
        assert before.result(30) == "done"
        with pytest.raises(RuntimeError, match="thread"):
            after.result(30)
        loop.close()
    assert "the engine's thread died" in caplog.text
    assert "SystemExit" in steps.calls[-2]
    assert not loop.alive


async def test_close_ends_requests_with_abort(checkpoint: Make) -> None:
    engine = EmbeddedEngine.from_directory(checkpoint(arch="qwen3"), max_running_requests=1)
    async with engine:
        assert engine.alive
        gate = Turnstile(engine, passes=3)
        open_ones = [submit(engine, PROMPT, rid=rid, max_new_tokens=500) for rid in "ab"]
        await gate.reached()
        closing = asyncio.ensure_future(anyio.to_thread.run_sync(engine.close))
        await anyio.lowlevel.checkpoint()
        gate.open()
        await closing
        ended = [await chunks_of(generation) for generation in open_ones]
    assert [chunks[-1].finish_reason for chunks in ended] == ["abort", "abort"]
    assert len(tokens_of(ended[0])) >= 4
    assert tokens_of(ended[1]) == []
    assert engine.in_flight == InFlightCounts()
    assert not engine.alive
    assert "hotswap-engine" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(RuntimeError, match="has ended"):
        submit(engine, PROMPT)
    with pytest.raises(RuntimeError, match="has ended"):
        await engine.flush()
    assert engine.in_flight == InFlightCounts()
    ended_before = open_ones[0]
    ended_before.abort()


async def test_close_answers_a_pause_that_drains(checkpoint: Make) -> None:
    async with EmbeddedEngine.from_directory(checkpoint(arch="qwen3")) as engine:
        gate = Turnstile(engine, passes=2)
        generation = submit(engine, PROMPT, max_new_tokens=500)
        await gate.reached()
        pausing = asyncio.ensure_future(engine.pause(PauseMode.WAIT))
        await anyio.lowlevel.checkpoint()
        closing = asyncio.ensure_future(anyio.to_thread.run_sync(engine.close))
        await anyio.lowlevel.checkpoint()
        gate.open()
        await closing
        with pytest.raises(RuntimeError, match="has ended"):
            await pausing
        assert (await chunks_of(generation))[-1].finish_reason == "abort"


async def test_an_engine_whose_thread_dies_ends_its_requests_with_error(
    checkpoint: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def die(_module: object, _inputs: object) -> None:
        raise SystemExit("on purpose")

    async with EmbeddedEngine.from_directory(checkpoint(arch="qwen3")) as engine:
        gate = Turnstile(engine, passes=2)
        running = submit(engine, PROMPT, rid="a")
        await gate.reached()
        later = submit(engine, PROMPT, rid="b")
        hook = engine.model.model.register_forward_pre_hook(die)
        with caplog.at_level(logging.CRITICAL):
            gate.open()
            ended = [await chunks_of(generation) for generation in (running, later)]
        hook.remove()
        assert [chunks[-1].finish_reason for chunks in ended] == ["error", "error"]
        assert len(tokens_of(ended[0])) == 2
        assert engine.in_flight == InFlightCounts()
        assert not engine.alive
        with pytest.raises(RuntimeError, match="has ended"):
            await engine.pause(PauseMode.ABORT)


async def test_an_engine_that_never_started_ends_what_was_submitted(checkpoint: Make) -> None:
    engine = EmbeddedEngine.from_directory(checkpoint(arch="qwen3"))
    generation = submit(engine, PROMPT)
    assert not engine.alive
    engine.close()
    assert [chunk.finish_reason for chunk in await chunks_of(generation)] == ["error"]
    assert engine.in_flight == InFlightCounts()


def test_one_engine_serves_one_event_loop_after_another(checkpoint: Make) -> None:
    engine = EmbeddedEngine.from_directory(checkpoint(arch="qwen3"))
    engine.start()

    async def leave_one_behind() -> list[int]:
        submit(engine, PROMPT, rid="left behind", max_new_tokens=60)
        return await generate(engine, PROMPT, rid="read", max_new_tokens=5)

    async def read() -> list[int]:
        return await generate(engine, PROMPT, rid="again", max_new_tokens=5)

    try:
        assert asyncio.run(leave_one_behind()) == asyncio.run(read())
        assert engine.alive
    finally:
        engine.close()


async def test_reprs_say_what_is_going_on(engine: EmbeddedEngine) -> None:
    assert repr(engine) == (
        "<EmbeddedEngine Qwen3ForCausalLM <EngineLoop alive> running=0 waiting=0>"
    )
    await engine.pause(PauseMode.IN_PLACE)
    generation = submit(engine, PROMPT, rid="x")
    assert repr(generation) == "<EmbeddedGeneration x open>"
    generation.abort()
    await chunks_of(generation)
    assert repr(generation) == "<EmbeddedGeneration x over>"
    assert repr(engine._steps) == ("<EngineSteps <Scheduler 0 running 0 waiting <Gate closed>>>")


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_process_that_never_closes_it_can_end(is_busy: bool) -> None:
    program = f"""
import torch
from hotswap.engine.loop import EngineLoop

class Steps:
    has_work = {is_busy}
    matrix = torch.ones(200, 200)
    def step(self): self.matrix @ self.matrix
    def publish(self): pass
    def shut(self, error): print("shut", error, flush=True)

loop = EngineLoop(Steps())
loop.start()
loop.post(lambda: None).result()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        timeout=60,
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert (ended.stdout, ended.stderr) == ("shut None\n", "")


def test_the_thread_keeps_no_process_alive(loop: EngineLoop) -> None:
    # One that ends without running exit functions, as a forked worker does, relies on it.
    assert loop.post(lambda: threading.current_thread().daemon).result(30)
