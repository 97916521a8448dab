"""Updates that fail: at every step, once, and what is left."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import product
from types import TracebackType

import anyio
import pytest
import torch

from hotswap.controller import Controller
from hotswap.errors import (
    IllegalCommand,
    UpdateFailed,
    UpdateRejected,
    UpdateRolledBack,
    WeightsNotWhole,
)
from hotswap.seams import LoadStrategy, Stage
from hotswap.state import Facts, State, Weights
from hotswap.testing.fakes import FakeEngine, FakeStage, Steps, fake_weights
from hotswap.testing.rig import Rig, make_rig, update_from
from hotswap.transaction import Transaction
from hotswap.types import Bucket, LoadMode, PauseMode, Placement, Update, WeightStamp

STAGED, DIRECT = LoadMode.STAGED, LoadMode.DIRECT
GATES = [None, PauseMode.RETRACT]


async def whole_rig(gate: PauseMode | None) -> Rig:
    """A server with checkpoint A, version "1", paused or not."""
    rig = make_rig()
    await rig.controller.start()
    await rig.controller.update(update_from("A", version="1"))
    if gate is not None:
        await rig.controller.pause(gate)
    rig.engine.calls.clear()
    return rig


async def assert_as_before(rig: Rig, gate: PauseMode | None) -> None:
    """O3, first half: nothing has changed, and the next update works."""
    assert rig.controller.machine.facts == Facts(gate=gate)
    assert rig.controller.stamp == rig.engine.stamp
    assert rig.controller.stamp == WeightStamp(version="1", update_count=1, epoch=1)
    assert rig.engine.values() == {1.0}
    rig.assert_rested()
    await assert_next_update_works(rig, gate)


async def assert_refuses(rig: Rig, gate: PauseMode | None) -> None:
    """O3, second half: nothing is generated until a full update."""
    controller = rig.controller
    assert controller.machine.state is State.INVALID
    assert controller.machine.facts == Facts(gate=gate, weights=Weights.TORN)
    assert controller.stamp == WeightStamp(version="1", update_count=1, epoch=1)
    assert "weights_not_whole" in controller.not_ready_reasons()
    assert not rig.engine.forward
    rig.assert_rested()
    with pytest.raises(WeightsNotWhole):
        await controller.admission.enter()
    with pytest.raises(IllegalCommand, match="full update"):
        await controller.resume()
    await assert_next_update_works(rig, gate)


async def assert_next_update_works(rig: Rig, gate: PauseMode | None) -> None:
    last = rig.controller.stamp.epoch
    report = await rig.controller.update(update_from("B", version="2"))
    assert report.stamp.epoch == last + 1
    assert rig.controller.machine.facts == Facts(gate=gate)
    assert rig.engine.values() == {2.0}
    rig.assert_rested()


def outcomes(rig: Rig) -> dict[str, int]:
    return {outcome: count for (_, outcome), count in rig.controller.counters.updates.items()}


BEFORE_THE_FIRST_WRITE = [
    (STAGED, "open", 0),
    (STAGED, "plan", 0),
    *((STAGED, "bucket", at) for at in range(3)),
    (STAGED, "close", 0),
    (STAGED, "pause", 0),
    (DIRECT, "open", 0),
    (DIRECT, "plan", 0),
    (DIRECT, "pause", 0),
    (DIRECT, "bucket", 0),
]


@pytest.mark.parametrize(
    ("mode", "step", "at", "gate"),
    [
        (*case, gate)
        for case, gate in product(BEFORE_THE_FIRST_WRITE, GATES)
        if gate is None or case[1] != "pause"  # paused already: nothing is asked to pause
    ],
)
async def test_failure_before_the_first_write_rejects(
    mode: LoadMode, step: str, at: int, gate: PauseMode | None
) -> None:
    rig = await whole_rig(gate)
    cause = OSError("disk on fire")
    rig.steps.fail(step, cause, at=at)
    with pytest.raises(UpdateRejected, match="disk on fire") as caught:
        await rig.controller.update(update_from("B", mode=mode, version="2"))
    assert caught.value.__cause__ is cause
    assert "write" not in rig.engine.calls
    assert outcomes(rig) == {"committed": 1, "rejected": 1}
    await assert_as_before(rig, gate)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("mode", [STAGED, DIRECT])
@pytest.mark.parametrize("source", ["wrong", "nowhere", "part"])
async def test_wrong_sources_are_rejected_by_the_planner(
    source: str, mode: LoadMode, gate: PauseMode | None
) -> None:
    rig = await whole_rig(gate)
    with pytest.raises(UpdateRejected):
        await rig.controller.update(update_from(source, mode=mode, version="2"))
    assert rig.engine.calls == []
    await assert_as_before(rig, gate)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(
    ("step", "at"), [("tensor", 0), ("tensor", 1), ("tensor", 2), ("write", 0), ("commit", 0)]
)
async def test_staged_commit_that_fails_once_rolls_forward(
    step: str, at: int, gate: PauseMode | None
) -> None:
    rig = await whole_rig(gate)
    rig.steps.fail(step, RuntimeError("cosmic ray"), at=at)
    report = await rig.controller.update(update_from("B", version="2"))
    assert rig.controller.stamp == report.stamp == rig.engine.stamp
    assert report.stamp == WeightStamp(version="2", update_count=2, epoch=2)
    assert outcomes(rig) == {"committed": 1, "rolled_forward": 1}
    assert rig.controller.machine.facts == Facts(gate=gate)
    assert rig.engine.values() == {2.0}
    rig.assert_rested()


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("step", ["tensor", "write", "commit"])
async def test_staged_commit_that_fails_twice_is_torn(step: str, gate: PauseMode | None) -> None:
    rig = await whole_rig(gate)
    rig.steps.fail(step, RuntimeError("first"))
    rig.steps.fail(step, RuntimeError("second"), at=1)
    with pytest.raises(UpdateFailed, match="second"):
        await rig.controller.update(update_from("B", version="2"))
    assert outcomes(rig) == {"committed": 1, "failed": 1}
    assert "resume" not in rig.engine.calls
    await assert_refuses(rig, gate)


AFTER_THE_FIRST_DIRECT_WRITE = [
    *(("tensor", at) for at in range(3)),
    *(("write", at) for at in range(3)),
    *(("bucket", at) for at in (1, 2)),
    ("commit", 0),
]


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(("step", "at"), AFTER_THE_FIRST_DIRECT_WRITE)
async def test_direct_update_that_fails_once_is_torn(
    step: str, at: int, gate: PauseMode | None
) -> None:
    rig = await whole_rig(gate)
    rig.steps.fail(step, OSError("cosmic ray"), at=at)
    with pytest.raises(UpdateFailed, match="cosmic ray"):
        await rig.controller.update(update_from("B", version="2", mode=DIRECT))
    assert outcomes(rig) == {"committed": 1, "failed": 1}
    assert "resume" not in rig.engine.calls
    await assert_refuses(rig, gate)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("mode", [STAGED, DIRECT])
async def test_cache_that_cannot_be_flushed_is_as_bad_as_torn_weights(
    mode: LoadMode, gate: PauseMode | None
) -> None:
    rig = await whole_rig(gate)
    rig.steps.fail("flush", RuntimeError("cache is stuck"))
    with pytest.raises(UpdateFailed, match="cache is stuck"):
        await rig.controller.update(update_from("B", version="2", mode=mode))
    await assert_refuses(rig, gate)


@pytest.mark.parametrize("mode", [STAGED, DIRECT])
async def test_engine_that_does_not_resume_is_reported_as_paused(
    mode: LoadMode, caplog: pytest.LogCaptureFixture
) -> None:
    rig = await whole_rig(None)
    rig.steps.fail("resume", RuntimeError("stuck"))
    report = await rig.controller.update(update_from("B", mode=mode))
    assert rig.controller.stamp == report.stamp
    assert rig.controller.machine.state is State.PAUSED
    assert rig.controller.not_ready_reasons() == ["paused"]
    assert "did not resume" in caplog.text
    rig.assert_rested()
    await rig.controller.resume()
    assert rig.controller.not_ready_reasons() == []
    rig.assert_rested()


@pytest.mark.parametrize("mode", [STAGED, DIRECT])
@pytest.mark.parametrize("lacking", ["c", "a"])
async def test_source_that_delivers_less_than_it_promised(mode: LoadMode, lacking: str) -> None:
    rig = await whole_rig(None)
    rig.strategy.promised = rig.engine.manifest()
    weights = fake_weights(2.0)
    del weights[lacking]
    rig.strategy.sources = {**rig.strategy.sources, "short": weights}
    error = UpdateRejected if mode is STAGED else UpdateFailed
    with pytest.raises(error):
        await rig.controller.update(update_from("short", mode=mode))
    if mode is STAGED:
        assert rig.engine.calls == []  # found before the pause
    rig.strategy.promised = None
    await (assert_as_before if mode is STAGED else assert_refuses)(rig, None)


@pytest.mark.parametrize("mode", [STAGED, DIRECT])
async def test_source_without_any_bucket_is_rejected(mode: LoadMode) -> None:
    rig = await whole_rig(None)
    rig.strategy.promised = rig.engine.manifest()
    rig.strategy.sources = {**rig.strategy.sources, "empty": {}}
    with pytest.raises(UpdateRejected):
        await rig.controller.update(update_from("empty", mode=mode))
    rig.strategy.promised = None
    await assert_as_before(rig, None)


async def test_direct_source_that_cannot_be_released_has_been_loaded_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = await whole_rig(None)
    rig.steps.fail("close", OSError("still mounted"))
    report = await rig.controller.update(update_from("B", mode=DIRECT))
    assert rig.controller.stamp == report.stamp
    assert "still mounted" in caplog.text
    assert outcomes(rig) == {"committed": 2}
    rig.assert_rested()


@pytest.mark.parametrize("mode", [STAGED, DIRECT])
async def test_what_failed_first_is_what_is_raised(
    mode: LoadMode, caplog: pytest.LogCaptureFixture
) -> None:
    rig = await whole_rig(None)
    rig.steps.fail("plan", ValueError("the first error"))
    rig.steps.fail("close", OSError("the second error"))
    with pytest.raises(UpdateRejected, match="the first error"):
        await rig.controller.update(update_from("B", mode=mode))
    assert "the second error" in caplog.text
    await assert_as_before(rig, None)


class RollingBack(Transaction):
    """A transaction that can undo, as those of patches can."""

    async def commit(self, stamp: WeightStamp) -> None:
        raise UpdateRolledBack("the patch was taken back")


async def test_update_that_was_rolled_back_leaves_all_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await whole_rig(None)
    with monkeypatch.context() as patch:
        patch.setattr("hotswap.update_pipeline.Transaction", RollingBack)
        with pytest.raises(UpdateRolledBack, match="taken back"):
            await rig.controller.update(update_from("B", version="2"))
    assert outcomes(rig) == {"committed": 1, "rolled_back": 1}
    await assert_as_before(rig, None)


class Gathering(Transaction):
    """A direct transaction that has to see every bucket before it may write one."""

    async def write(self, bucket: Bucket) -> None:
        assert not self.touched


async def test_direct_source_that_breaks_before_anything_was_written_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await whole_rig(None)
    with monkeypatch.context() as patch:
        patch.setattr("hotswap.update_pipeline.Transaction", Gathering)
        rig.steps.fail("bucket", OSError("short read"), at=1)
        with pytest.raises(UpdateRejected, match="short read") as caught:
            await rig.controller.update(update_from("B", version="2", mode=DIRECT))
        assert isinstance(caught.value.__cause__, OSError)
    assert outcomes(rig) == {"committed": 1, "rejected": 1}
    await assert_as_before(rig, None)


Body = Callable[[Update], AbstractAsyncContextManager[Stage]]


class Scripted:
    """A strategy whose context is one function."""

    def __init__(self, body: Body) -> None:
        self._body = body

    def open(self, update: Update, placement: Placement) -> AbstractAsyncContextManager[Stage]:
        return self._body(update)


def controller_with(strategy: LoadStrategy) -> tuple[FakeEngine, Controller]:
    engine = FakeEngine(fake_weights(1.0))
    return engine, Controller(engine, strategies={"fake": strategy})


async def test_strategy_with_a_time_limit_of_its_own_is_rejected_not_cancelled() -> None:
    @asynccontextmanager
    async def impatient(update: Update) -> AsyncIterator[Stage]:
        with anyio.move_on_after(0):
            yield FakeStage(fake_weights(2.0), steps=Steps())

    engine, controller = controller_with(Scripted(impatient))
    with pytest.raises(UpdateRejected, match="given up by its strategy"):
        await controller.update(update_from("B"))
    assert engine.calls == []


async def test_strategy_whose_background_task_fails_is_rejected() -> None:
    async def fail() -> None:
        raise OSError("the connection is gone")

    @asynccontextmanager
    async def fetching(update: Update) -> AsyncIterator[Stage]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail)
            yield FakeStage(fake_weights(2.0), steps=Steps())

    engine, controller = controller_with(Scripted(fetching))
    with pytest.raises(UpdateRejected, match="holding 'B'") as caught:
        await controller.update(update_from("B"))
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    assert engine.calls == []


class Swallowing:
    """A strategy whose exit says that every error was dealt with."""

    def open(self, update: Update, placement: Placement) -> AbstractAsyncContextManager[Stage]:
        return self

    async def __aenter__(self) -> Stage:
        return FakeStage({"unknown": torch.zeros(1)}, steps=Steps())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return True


@pytest.mark.parametrize("mode", [STAGED, DIRECT])
async def test_strategy_cannot_swallow_what_went_wrong(mode: LoadMode) -> None:
    engine, controller = controller_with(Swallowing())
    with pytest.raises(UpdateRejected, match="unknown"):
        await controller.update(update_from("B", mode=mode))
    assert engine.calls == []


@pytest.mark.parametrize("failing", [False, True])
async def test_strategy_that_never_releases_is_left_after_a_while(
    failing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotswap.fetch.RELEASE_S", 0.01)

    @asynccontextmanager
    async def clinging(update: Update) -> AsyncIterator[Stage]:
        try:
            yield FakeStage(fake_weights(2.0, names="xyz" if failing else "abc"), steps=Steps())
        finally:
            await anyio.sleep_forever()

    engine, controller = controller_with(Scripted(clinging))
    message = "unknown" if failing else "releasing 'B' .*took longer than 0.01 s"
    with pytest.raises(UpdateRejected, match=message):
        await controller.update(update_from("B"))
    assert engine.calls == []
