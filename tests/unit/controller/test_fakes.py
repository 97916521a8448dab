"""The fakes check the contracts that they are called under."""

from __future__ import annotations

import anyio
import pytest
import torch

from hotswap.errors import UpdateRejected
from hotswap.testing.fakes import FakeEngine, FakeStage, FakeStrategy, Steps, fake_weights
from hotswap.testing.rig import make_rig, update_from
from hotswap.types import (
    Bucket,
    InFlightCounts,
    Manifest,
    PauseMode,
    Placement,
    Scope,
    TensorSpec,
    WeightStamp,
)


class Twos:
    """A payload that is not in memory yet."""

    spec = TensorSpec(name="anything", dtype=torch.float32, shape=(4,))

    def read_into(self, out: torch.Tensor) -> None:
        out.fill_(2.0)


async def test_writing_while_forward_passes_run_is_an_error() -> None:
    engine = FakeEngine()
    plan = engine.plan(engine.manifest(), Scope.FULL)
    bucket: Bucket = list(fake_weights(1.0).items())
    with pytest.raises(AssertionError, match="written while forward passes run"):
        await engine.write(plan, bucket)
    with pytest.raises(AssertionError, match="committed while forward passes run"):
        await engine.commit(WeightStamp(epoch=1))
    await engine.pause(PauseMode.ABORT)
    with pytest.raises(AssertionError, match="z was never planned"):
        await engine.write(plan, [("z", torch.zeros(4))])
    assert engine.values() == {0.0}


async def test_payloads_that_are_read_late_are_written_too() -> None:
    engine = FakeEngine()
    await engine.pause(PauseMode.ABORT)
    stage = FakeStage({"a": Twos(), "b": Twos(), "c": Twos()}, steps=Steps(), per_bucket=2)
    assert stage.manifest == engine.manifest()
    plan = engine.plan(stage.manifest, Scope.FULL)
    sizes = []
    for bucket in stage.buckets():
        sizes.append(len(bucket))
        await engine.write(plan, bucket)
    assert sizes == [2, 1]
    assert engine.values() == {2.0}


def test_plan_names_what_does_not_fit() -> None:
    engine = FakeEngine()
    wrong = TensorSpec(name="a", dtype=torch.float32, shape=(5,))
    extra = TensorSpec(name="z", dtype=torch.float32, shape=(4,))
    with pytest.raises(UpdateRejected, match=r"unknown \['z'\], missing \['b', 'c'\], wrong \['a "):
        engine.plan(Manifest.of([wrong, extra]), Scope.FULL)


async def test_modes_treat_requests_as_an_engine_does() -> None:
    engine = FakeEngine()
    engine.in_flight = InFlightCounts(running=2, holding_kv=2)
    assert (await engine.pause(PauseMode.RETRACT)).num_aborted == 0
    assert engine.in_flight == InFlightCounts(waiting=2)
    await engine.resume()
    assert engine.in_flight == InFlightCounts(running=2, holding_kv=2)
    assert (await engine.pause(PauseMode.ABORT)).num_aborted == 2
    assert engine.in_flight == InFlightCounts()


async def test_stage_is_not_read_after_its_release() -> None:
    strategy = FakeStrategy(sources={"A": fake_weights(1.0)})
    async with strategy.open(update_from("A"), Placement()) as stage:
        buckets = stage.buckets()
        next(iter(buckets))
    with pytest.raises(AssertionError, match="read after it had been released"):
        list(stage.buckets())
    assert (strategy.entered, strategy.left) == (1, 1)


async def test_steps_fail_hold_and_act_where_they_are_told() -> None:
    steps, acted = Steps(), list[str]()
    steps.fail("x", ValueError("second x"), at=1)
    steps.act_at(2, lambda: acted.append("third step"))
    await steps.step("x")
    with pytest.raises(ValueError, match="second x"):
        await steps.step("x")
    assert acted == []
    hold = steps.hold("y")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(steps.step, "y")
        await hold.arrived.wait()
        assert acted == ["third step"]
        hold.release()
    steps.fail("z", ValueError("never"))
    steps.forget_failures()
    await steps.step("z")
    assert steps.passed == ["x", "x", "y", "z"]


async def test_rig_notices_what_does_not_rest() -> None:
    rig = make_rig()
    rig.assert_rested()
    rig.engine.forward = False
    with pytest.raises(AssertionError):
        rig.assert_rested()
    rig.engine.forward = True
    rig.engine.weights["a"].fill_(9.0)
    with pytest.raises(AssertionError, match="mixed and serving"):
        rig.assert_rested()
