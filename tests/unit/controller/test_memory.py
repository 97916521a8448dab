"""The commands ``sleep`` and ``wake``: what goes, what comes back, and what is refused."""

from __future__ import annotations

from functools import partial
from itertools import count

import anyio
import pytest

from hotswap.controller import Controller
from hotswap.errors import Busy, CommandError, IllegalCommand, InFlight, Paused, WeightsNotWhole
from hotswap.occupation import TAGS
from hotswap.state import Facts, Kv, State, Weights
from hotswap.testing.fakes import fake_weights
from hotswap.testing.module_engine import ModuleEngine
from hotswap.testing.rig import CANCELS, Rig, make_rig, settle, update_from
from hotswap.testing.tiny_modules import TinyModel, tiny_target
from hotswap.types import InFlightCounts, PauseMode, WeightStamp

GATES = [None, PauseMode.ABORT, PauseMode.RETRACT]
SETS = [frozenset({"weights"}), frozenset({"kv_cache"}), TAGS]
VERSION_1 = WeightStamp(version="1", epoch=1)


async def whole_rig(gate: PauseMode | None = None) -> Rig:
    rig = make_rig(weights=fake_weights(1.0), stamp=VERSION_1)
    rig.engine.stamp = VERSION_1
    await rig.controller.start()
    if gate is not None:
        await rig.controller.pause(gate)
    rig.engine.calls.clear()
    return rig


@pytest.mark.parametrize("tags", SETS, ids=sorted)
@pytest.mark.parametrize("gate", GATES)
async def test_what_slept_is_awake_again_and_a_full_update_makes_it_whole(
    gate: PauseMode | None, tags: frozenset[str]
) -> None:
    rig = await whole_rig(gate)
    memory, machine = rig.controller.memory, rig.controller.machine
    for again in (False, True):
        done = await memory.sleep(tags)
        assert (done.moved, done.asleep) == (frozenset() if again else tags, tags)
        assert machine.state is State.SLEEPING
        assert "sleeping" in rig.controller.not_ready_reasons()
        with pytest.raises(WeightsNotWhole, match="sleeps"):
            await rig.controller.admission.enter()
    assert rig.engine.calls == [*(["pause"] if gate is None else []), "sleep"]

    for again in (False, True):
        done = await memory.wake(tags)
        assert (done.moved, done.asleep) == (frozenset() if again else tags, frozenset())
    whole = "weights" not in tags
    assert machine.facts == Facts(
        gate=gate, weights=Weights.WHOLE if whole else Weights.NEVER_LOADED
    )
    assert rig.engine.forward is (whole and gate is None)
    if not whole:
        with pytest.raises(IllegalCommand, match="not whole"):
            await rig.controller.resume()
    await rig.controller.update(update_from("B", version="2"))
    assert machine.facts == Facts(gate=gate)
    assert rig.controller.stamp.version == "2"
    assert rig.controller.counters.commands["sleep", "done"] == 2
    assert rig.controller.counters.commands["wake", "done"] == 2
    rig.assert_rested()


async def test_the_order_of_a_push_is_weights_then_update_then_keys_and_values() -> None:
    rig = await whole_rig()
    memory = rig.controller.memory
    await memory.sleep()
    with pytest.raises(IllegalCommand, match='wake the tag "weights" first'):
        await rig.controller.update(update_from("B"))
    assert memory.asleep == TAGS
    await memory.wake(frozenset({"weights"}))
    assert rig.controller.not_ready_reasons() == ["paused", "sleeping", "weights_not_whole"]
    await rig.controller.update(update_from("B"))
    assert await rig.controller.flush() == 0
    assert rig.controller.not_ready_reasons() == ["paused", "sleeping"]
    await memory.wake(frozenset({"kv_cache"}))

    assert rig.engine.values() == {2.0}
    assert rig.controller.not_ready_reasons() == []
    rig.assert_rested()


async def test_a_client_that_resumes_while_the_server_sleeps_is_remembered() -> None:
    rig = await whole_rig(PauseMode.ABORT)
    await rig.controller.memory.sleep(frozenset({"kv_cache"}))
    await rig.controller.resume()
    assert not rig.engine.forward
    await rig.controller.memory.wake()
    assert rig.controller.machine.state is State.SERVING
    rig.assert_rested()


async def test_weights_that_an_engine_has_kept_come_back_as_they_were() -> None:
    rig = await whole_rig()
    rig.engine.keeps = True
    await rig.controller.memory.sleep()
    await rig.controller.memory.wake()
    assert rig.controller.machine.facts == Facts()


@pytest.mark.parametrize(
    ("in_flight", "gate"),
    [
        (InFlightCounts(running=2, holding_kv=2), None),
        (InFlightCounts(waiting=1), None),
        (InFlightCounts(running=1, holding_kv=1), PauseMode.IN_PLACE),
    ],
)
async def test_beside_requests_it_is_refused_and_changes_nothing(
    in_flight: InFlightCounts, gate: PauseMode | None
) -> None:
    rig = await whole_rig(gate)
    rig.engine.in_flight = in_flight
    with pytest.raises(InFlight, match="pause_generation"):
        await rig.controller.memory.sleep()
    assert rig.controller.machine.facts == Facts(gate=gate)
    assert rig.engine.calls == []


async def test_parked_requests_sleep_too_and_go_on_after_it() -> None:
    rig = await whole_rig()
    rig.run_requests(2)
    await rig.controller.pause(PauseMode.RETRACT)
    await rig.controller.memory.sleep()
    await rig.controller.memory.wake()
    await rig.controller.update(update_from("A"))
    await rig.controller.resume()
    assert rig.engine.in_flight == InFlightCounts(running=2, holding_kv=2)


@pytest.mark.parametrize("gate", [None, PauseMode.IN_PLACE])
@pytest.mark.parametrize("mode", [PauseMode.ABORT, PauseMode.RETRACT])
async def test_a_mode_meets_requests_that_run_or_are_frozen(
    gate: PauseMode | None, mode: PauseMode
) -> None:
    rig = await whole_rig()
    rig.run_requests(3)
    if gate is not None:
        await rig.controller.pause(gate)
    done = await rig.controller.memory.sleep(pause_mode=mode)

    kept = 0 if mode is PauseMode.ABORT else 3
    assert done.num_aborted == 3 - kept
    assert rig.engine.in_flight == InFlightCounts(waiting=kept)
    assert rig.controller.machine.facts.gate is gate


@pytest.mark.parametrize("mode", [PauseMode.IN_PLACE, PauseMode.WAIT])
async def test_a_mode_that_keeps_the_memory_is_refused(mode: PauseMode) -> None:
    rig = await whole_rig()
    with pytest.raises(ValueError, match="wanted abort or retract"):
        await rig.controller.memory.sleep(pause_mode=mode)


async def test_a_request_that_is_held_turns_back_when_the_server_sleeps() -> None:
    rig = make_rig(weights=fake_weights(1.0), while_paused="hold")
    async with rig.controller as controller, anyio.create_task_group() as tasks:
        await controller.pause(PauseMode.ABORT)
        refused = list[Exception]()

        async def enter() -> None:
            try:
                await controller.admission.enter()
            except (Paused, WeightsNotWhole) as error:
                refused.append(error)

        tasks.start_soon(enter)
        await settle()
        assert refused == []
        await controller.memory.sleep()
        await settle()
    assert [type(error) for error in refused] == [WeightsNotWhole]


@pytest.mark.parametrize("how", CANCELS)
@pytest.mark.parametrize("command", ["sleep", "wake"])
async def test_cancelled_anywhere_it_is_done_or_undone(how: str, command: str) -> None:
    for at in count():
        rig = await whole_rig()
        memory = rig.controller.memory
        if command == "wake":
            await memory.sleep()
        before = rig.controller.machine.facts
        cancelled = await CANCELS[how](rig.steps, at, partial(getattr(memory, command)))
        await settle()
        slept = rig.controller.machine.facts
        done = {
            "sleep": Facts(weights=Weights.RELEASED, kv=Kv.RELEASED),
            "wake": Facts(weights=Weights.NEVER_LOADED),
        }[command]
        assert slept in (before, done)
        assert rig.engine.asleep == memory.asleep
        rig.assert_rested()
        if not cancelled:
            assert slept == done
            break
    assert at > 0


async def test_a_sleep_that_fails_leaves_weights_that_are_not_whole() -> None:
    rig = await whole_rig()
    rig.steps.fail("sleep", RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        await rig.controller.memory.sleep()
    assert rig.controller.machine.state is State.INVALID
    await rig.controller.update(update_from("A"))
    rig.assert_rested()


@pytest.mark.parametrize(
    ("tags", "error"),
    [
        (frozenset({"kv_cache"}), RuntimeError("broken")),
        (TAGS, IllegalCommand("its memory is a mapped file")),
    ],
)
async def test_a_sleep_that_has_touched_no_weights_leaves_them_whole(
    tags: frozenset[str], error: Exception
) -> None:
    rig = await whole_rig()
    rig.steps.fail("sleep", error)
    with pytest.raises(type(error)):
        await rig.controller.memory.sleep(tags)
    assert rig.controller.machine.facts == Facts()
    rig.assert_rested()


async def test_memory_that_is_not_there_leaves_the_server_asleep() -> None:
    rig = await whole_rig()
    await rig.controller.memory.sleep()
    rig.steps.fail("wake", MemoryError("2 GB lack"))
    with pytest.raises(CommandError, match="kv_cache, weights sleep on: 2 GB lack"):
        await rig.controller.memory.wake()
    assert rig.controller.memory.asleep == TAGS
    await rig.controller.memory.wake()
    assert rig.controller.memory.asleep == frozenset()


async def test_it_waits_its_turn_behind_an_update() -> None:
    rig = await whole_rig()
    hold = rig.steps.hold("write")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.controller.update, update_from("B", version="2"))
        await hold.arrived.wait()
        tasks.start_soon(rig.controller.memory.sleep)
        await settle()
        assert rig.controller.memory.asleep == frozenset()
        hold.release()
    assert rig.controller.memory.asleep == TAGS
    assert rig.controller.stamp.version == "2"


async def test_a_command_that_waits_too_long_is_busy() -> None:
    rig = make_rig(queue_wait_s=0.01)
    await rig.controller.start()
    hold = rig.steps.hold("write")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.controller.update, update_from("B"))
        await hold.arrived.wait()
        with pytest.raises(Busy):
            await rig.controller.memory.sleep()
        hold.release()


async def test_an_engine_that_cannot_says_so() -> None:
    controller = Controller(ModuleEngine(tiny_target(TinyModel())), strategies={})
    for command in (controller.memory.sleep, controller.memory.wake):
        with pytest.raises(IllegalCommand, match="cannot give memory back"):
            await command()
    assert repr(controller.memory) == "<Occupation asleep=[]>"


async def test_weights_stay_while_a_session_is_about_to_replace_them() -> None:
    """A12: begin, sleep in the middle, finish. Nothing else changes the weights meanwhile."""
    rig = await whole_rig()
    memory, sessions = rig.controller.memory, rig.controller.sessions
    sessions.begin(update_id="u")
    for tags in (TAGS, frozenset({"weights"})):
        with pytest.raises(Busy, match="'u' is open"):
            await memory.sleep(tags)
    assert (memory.asleep, rig.controller.machine.state) == (frozenset(), State.SERVING)
    await memory.sleep(frozenset({"kv_cache"}))
    await memory.wake()
    await sessions.abort("u")
    await memory.sleep(TAGS)
    assert memory.asleep == TAGS
