"""Two commands beside the update: another label for the weights, and noise instead of them."""

from __future__ import annotations

from functools import partial
from itertools import count

import anyio
import pytest

from hotswap.controller import Controller
from hotswap.errors import Busy, IllegalCommand, InFlight, WeightsNotWhole
from hotswap.state import Facts, State, Weights
from hotswap.testing.fakes import fake_weights
from hotswap.testing.module_engine import ModuleEngine
from hotswap.testing.rig import CANCELS, Rig, make_rig, settle, update_from
from hotswap.testing.tiny_modules import TinyModel, tiny_target
from hotswap.types import PauseMode, Scope, WeightStamp

GATES = [None, *PauseMode]
VERSION_1 = WeightStamp(version="1", token_step=7, update_count=1, epoch=1)


async def whole_rig(gate: PauseMode | None = None, *, requests: int = 0) -> Rig:
    rig = make_rig(weights=fake_weights(1.0), stamp=VERSION_1)
    rig.engine.stamp = VERSION_1
    await rig.controller.start()
    if requests:
        rig.run_requests(requests)
    if gate is not None:
        await rig.controller.pause(gate)
    rig.engine.calls.clear()
    return rig


def stamp_of(rig: Rig) -> WeightStamp:
    assert rig.engine.stamp == rig.controller.stamp
    return rig.controller.stamp


@pytest.mark.parametrize("gate", [None, PauseMode.IN_PLACE, PauseMode.RETRACT])
@pytest.mark.parametrize("abort", [False, True])
async def test_a_relabel_changes_the_version_and_nothing_else(
    gate: PauseMode | None, abort: bool
) -> None:
    rig = await whole_rig(gate, requests=2)
    before = rig.controller.machine.facts

    assert await rig.controller.relabel("2", abort=abort) == (2 if abort else 0)

    assert stamp_of(rig) == WeightStamp(version="2", token_step=7, update_count=1, epoch=1)
    assert rig.controller.machine.facts == before
    assert rig.engine.in_flight.total == (0 if abort else 2)
    stops = ["pause"] if gate is None or abort else []
    assert rig.engine.calls == [*stops, "commit", *(["resume"] if gate is None else [])]
    assert rig.controller.counters.commands["relabel", "done"] == 1
    assert not rig.controller.counters.updates
    assert rig.controller.last_update is None


async def test_the_next_update_keeps_the_new_label() -> None:
    rig = await whole_rig()
    await rig.controller.relabel("2")
    await rig.controller.update(update_from("B"))

    assert stamp_of(rig) == WeightStamp(version="2", token_step=7, update_count=2, epoch=2)


async def test_a_relabel_waits_for_the_update_that_came_first() -> None:
    rig = await whole_rig()
    hold = rig.steps.hold("write")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.controller.update, update_from("B", version="B"))
        await hold.arrived.wait()
        tasks.start_soon(rig.controller.relabel, "later")
        await settle()
        assert rig.controller.stamp == VERSION_1
        assert rig.controller.queue.waiting == 1
        hold.release()

    assert stamp_of(rig).version == "later"
    assert stamp_of(rig).epoch == 2
    assert rig.engine.values() == {2.0}


async def test_a_relabel_gives_up_after_a_bound() -> None:
    rig = make_rig(queue_wait_s=0.01)
    hold = rig.steps.hold("write")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.controller.update, update_from("B"))
        await hold.arrived.wait()
        with pytest.raises(Busy, match="relabel waited"):
            await rig.controller.relabel("2")
        hold.release()
    assert rig.controller.counters.commands["relabel", "refused"] == 1


async def test_weights_that_are_not_whole_get_no_label() -> None:
    rig = make_rig(facts=Facts(weights=Weights.TORN), stamp=VERSION_1)
    with pytest.raises(IllegalCommand, match="send a full update with its version"):
        await rig.controller.relabel("2")
    assert rig.controller.stamp == VERSION_1


async def test_a_relabel_that_the_engine_refuses_changes_nothing() -> None:
    rig = await whole_rig()
    rig.steps.fail("commit", RuntimeError("no"))
    with pytest.raises(RuntimeError, match="no"):
        await rig.controller.relabel("2")

    assert stamp_of(rig) == VERSION_1
    assert rig.controller.machine.state is State.SERVING
    assert rig.engine.forward


@pytest.mark.parametrize("way", CANCELS)
@pytest.mark.parametrize("gate", [None, PauseMode.IN_PLACE])
async def test_a_relabel_that_is_cancelled_is_whole_or_undone(
    way: str, gate: PauseMode | None
) -> None:
    cancelled = 0
    for at in count():
        rig = await whole_rig(gate, requests=1)
        before = rig.controller.machine.facts
        if not await CANCELS[way](rig.steps, at, partial(rig.controller.relabel, "2")):
            break
        cancelled += 1
        assert stamp_of(rig).version in ("1", "2")
        assert rig.controller.machine.facts == before
        assert rig.engine.forward is (gate is None)
        assert rig.controller.queue.idle
    assert cancelled >= 1


@pytest.mark.parametrize("gate", GATES)
async def test_after_a_reset_nothing_is_generated_until_a_full_update(
    gate: PauseMode | None,
) -> None:
    rig = await whole_rig(gate)

    assert await rig.controller.reset() == ("a", "b", "c")

    assert rig.engine.values() == {-1.0}
    assert rig.controller.machine.state is State.INVALID
    assert rig.controller.machine.facts == Facts(gate=gate, weights=Weights.TORN)
    assert not rig.engine.forward
    assert "weights_not_whole" in rig.controller.not_ready_reasons()
    with pytest.raises(WeightsNotWhole):
        await rig.controller.admission.enter()
    with pytest.raises(IllegalCommand, match="send a full update"):
        await rig.controller.resume()
    with pytest.raises(IllegalCommand, match="covers only a part"):
        await rig.controller.update(update_from("part", scope=Scope.PARTIAL))
    assert stamp_of(rig) == VERSION_1

    await rig.controller.update(update_from("A", version="1"))
    assert rig.engine.values() == {1.0}
    assert rig.controller.machine.facts == Facts(gate=gate)
    assert rig.engine.forward is (gate is None)
    assert rig.controller.counters.commands["reset", "done"] == 1


async def test_a_reset_beside_requests_is_refused_unless_they_stand_still() -> None:
    rig = await whole_rig(requests=2)
    with pytest.raises(InFlight, match="pause_generation"):
        await rig.controller.reset()
    assert rig.engine.values() == {1.0}
    assert rig.engine.forward

    await rig.controller.pause(PauseMode.IN_PLACE)
    await rig.controller.reset()
    assert rig.engine.in_flight.total == 2
    assert rig.engine.values() == {-1.0}


async def test_skipped_names_stay() -> None:
    rig = await whole_rig()
    assert await rig.controller.reset(skipped=("b",)) == ("a", "c")
    assert rig.engine.values() == {-1.0, 1.0}


async def test_a_reset_that_fails_half_way_is_torn() -> None:
    rig = await whole_rig()
    rig.steps.fail("tensor", RuntimeError("no"), at=1)
    with pytest.raises(RuntimeError, match="no"):
        await rig.controller.reset()

    assert rig.engine.values() == {-1.0, 1.0}
    assert rig.controller.machine.state is State.INVALID
    assert not rig.engine.forward


async def test_a_reset_that_is_cancelled_before_it_begins_is_undone() -> None:
    rig = await whole_rig()
    hold = rig.steps.hold("pause")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.controller.reset)
        await hold.arrived.wait()
        tasks.cancel_scope.cancel()

    assert rig.engine.values() == {1.0}
    assert rig.controller.machine.state is State.SERVING
    assert rig.engine.forward


async def test_an_engine_that_cannot_reset_says_so() -> None:
    engine = ModuleEngine(tiny_target(TinyModel()))
    async with Controller(engine, strategies={}) as controller:
        with pytest.raises(IllegalCommand, match="cannot reset"):
            await controller.reset()
        assert controller.machine.state is State.SERVING


async def test_released_weights_are_not_reset() -> None:
    rig = make_rig(facts=Facts(weights=Weights.RELEASED))
    with pytest.raises(IllegalCommand, match="wake"):
        await rig.controller.reset()
