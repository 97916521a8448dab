"""Boot, shutdown, and what can be seen from outside."""

from __future__ import annotations

import asyncio
import json
import logging

import anyio
import pytest

from hotswap.counters import Counters, outcome_of
from hotswap.errors import (
    Busy,
    InFlight,
    Overtaken,
    ShuttingDown,
    UpdateFailed,
    UpdateRejected,
    UpdateRolledBack,
)
from hotswap.state import Change, Facts, State, Weights
from hotswap.testing.rig import make_rig, update_from
from hotswap.types import LoadMode, PauseMode, Placement, WeightStamp
from hotswap.update_pipeline import UpdatePipeline

MODES = list(LoadMode)


async def test_boot_with_whole_weights_serves() -> None:
    rig = make_rig()
    assert rig.controller.not_ready_reasons() == ["starting"]
    await rig.controller.start()
    assert rig.controller.not_ready_reasons() == []
    assert rig.engine.calls == []


async def test_boot_without_weights_pauses_the_engine() -> None:
    rig = make_rig(facts=Facts(weights=Weights.NEVER_LOADED))
    await rig.controller.start()
    assert rig.engine.modes == [PauseMode.IN_PLACE]
    assert rig.controller.machine.state is State.INVALID
    rig.assert_rested()


@pytest.mark.parametrize("mode", MODES)
async def test_close_finishes_a_running_commit(mode: LoadMode) -> None:
    rig = make_rig()
    hold = rig.steps.hold("commit")
    update = asyncio.ensure_future(rig.controller.update(update_from("A", version="1", mode=mode)))
    await hold.arrived.wait()
    closing = asyncio.ensure_future(rig.controller.close())
    await anyio.lowlevel.checkpoint()
    assert not closing.done()
    assert "shutting_down" in rig.controller.not_ready_reasons()
    hold.release()
    assert (await update).stamp.version == "1"
    await closing
    assert rig.engine.values() == {1.0}
    rig.assert_rested()


@pytest.mark.parametrize("step", ["open", "close"])
async def test_close_drops_what_is_being_staged(step: str) -> None:
    rig = make_rig()
    hold = rig.steps.hold(step)
    update = asyncio.ensure_future(rig.controller.update(update_from("A", version="1")))
    await hold.arrived.wait()
    closing = asyncio.ensure_future(rig.controller.close())
    for _ in range(10):
        await anyio.lowlevel.checkpoint()
    # An update that is fetching ends at once; one that is releasing is waited for.
    assert closing.done() is (step == "open")
    hold.release()
    await closing
    assert rig.strategy.entered == rig.strategy.left
    with pytest.raises(ShuttingDown, match="shutting down"):
        await update
    assert rig.engine.calls == []
    assert rig.controller.stamp == WeightStamp()
    assert rig.controller.counters.updates == {("fake", "dropped"): 1}
    rig.assert_rested()


async def test_close_ends_a_pause_that_drains() -> None:
    rig = make_rig()
    rig.run_requests(1)
    pause = asyncio.ensure_future(rig.controller.pause(PauseMode.WAIT))
    while not rig.engine.modes:
        await anyio.lowlevel.checkpoint()
    await rig.controller.close()
    with pytest.raises(ShuttingDown, match="was still draining"):
        await pause
    rig.assert_rested()


async def test_nothing_is_taken_after_the_close() -> None:
    rig = make_rig()
    async with rig.controller as controller:
        pass
    for call in (
        lambda: controller.update(update_from("A")),
        lambda: controller.pause(PauseMode.ABORT),
        controller.resume,
        controller.flush,
    ):
        with pytest.raises(ShuttingDown, match="shutting down"):
            await call()
    with pytest.raises(ShuttingDown, match="shutting down"):
        await controller.admission.enter()
    await controller.close()
    assert rig.engine.calls == []


async def test_every_change_of_state_is_logged_counted_and_shown_to_the_hooks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    changes = list[Change]()

    def broken(change: Change) -> None:
        raise ValueError("observer is broken")

    rig = make_rig(changed=[broken, changes.append])
    caplog.set_level(logging.INFO, logger="hotswap.state")
    await rig.controller.pause(PauseMode.RETRACT)
    await rig.controller.pause(PauseMode.RETRACT)  # no fact changes
    await rig.controller.update(update_from("A"))
    await rig.controller.resume()
    lines = [r.message for r in caplog.records if r.levelno == logging.INFO]
    assert lines == [
        "serving -> paused: pause done (gate retract, weights whole, kv resident)",
        "paused -> updating: update begun (gate retract, weights whole, kv resident)",
        "updating -> paused: update done (gate retract, weights whole, kv resident)",
        "paused -> serving: resume done (gate open, weights whole, kv resident)",
    ]
    assert [str(change.command) for change in changes] == [
        *("pause", "pause", "update", "update", "resume")
    ]
    errors = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == len(changes)
    assert errors[0].message.startswith("a changed hook failed on: serving -> paused: pause done")
    assert rig.controller.counters.states == {"paused": 2, "updating": 1, "serving": 1}


async def test_counters_are_plain_numbers() -> None:
    rig = make_rig()
    await rig.controller.update(update_from("A"))
    with pytest.raises(UpdateRejected):
        await rig.controller.update(update_from("wrong"))
    await rig.controller.flush()
    counts = rig.controller.counters.as_dict()
    assert json.loads(json.dumps(counts)) == {
        "commands": {"swap/committed": 1, "swap/rejected": 1, "flush/done": 1},
        "updates": {"fake/committed": 1, "fake/rejected": 1},
        "states": {"updating": 1, "serving": 2, "flushing": 1},
    }
    assert repr(rig.controller.counters) == "<Counters commands=3 updates=2>"


def test_every_error_has_its_word() -> None:
    words = {
        UpdateRejected("x"): "rejected",
        UpdateRolledBack("x"): "rolled_back",
        UpdateFailed("x"): "failed",
        InFlight("x"): "refused",
        Busy("x"): "refused",
        ShuttingDown("x"): "dropped",
        Overtaken("x"): "overtaken",
        asyncio.CancelledError(): "cancelled",
        RuntimeError("x"): "failed",
    }
    for error, word in words.items():
        assert outcome_of(error) == word
    assert Counters().as_dict() == {"commands": {}, "updates": {}, "states": {}}


async def test_reprs() -> None:
    rig = make_rig()
    assert repr(rig.controller) == (
        "<Controller serving WeightStamp(version=None, token_step=None, update_count=0, epoch=0)>"
    )
    pipeline = UpdatePipeline(
        engine=rig.engine,
        machine=rig.controller.machine,
        queue=rig.controller.queue,
        strategies={},
        placement=Placement(),
        pre_read=(),
        stamp=WeightStamp(version="7"),
        window=rig.controller.writes,
    )
    assert repr(pipeline) == f"<UpdatePipeline {pipeline.stamp}>"
    assert repr(rig.engine) == (
        "<FakeEngine running InFlightCounts(running=0, waiting=0, holding_kv=0)>"
    )


async def test_updates_that_are_not_over_are_listed_with_their_phase() -> None:
    rig = make_rig()
    phases = []
    for step in ("open", "write"):
        hold = rig.steps.hold(step)
        update = asyncio.ensure_future(rig.controller.update(update_from("B", version="v")))
        await hold.arrived.wait()
        (progress,) = rig.controller.updates
        phases.append(progress["phase"])
        assert (progress["source"], progress["strategy"], progress["version"]) == ("B", "fake", "v")
        hold.release()
        await update
    assert phases == ["staging", "committing"]
    assert rig.controller.updates == []


async def test_each_update_leaves_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    rig = make_rig()
    caplog.set_level(logging.INFO, logger="hotswap.update")
    await rig.controller.update(update_from("B", version="v"))
    with pytest.raises(UpdateRejected):
        await rig.controller.update(update_from("wrong"))
    committed, rejected = (record.getMessage() for record in caplog.records)
    assert committed.startswith("fake update from B version v committed: 3 tensors, 0 MB staged")
    assert committed.endswith("epoch 1")
    assert rejected.startswith("fake update from wrong rejected: ")
