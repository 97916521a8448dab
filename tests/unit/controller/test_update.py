"""Updates that go well, and those that are refused before anything happens."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import anyio
import pytest
import torch

from hotswap.errors import IllegalCommand, InFlight, UpdateRejected
from hotswap.fetch import PreRead
from hotswap.plugin_hooks import PreReadHook
from hotswap.state import Facts, Kv, State, Weights
from hotswap.testing.fakes import Hold
from hotswap.testing.rig import make_rig, update_from
from hotswap.types import InFlightCounts, LoadMode, PauseMode, Scope, WeightStamp

MODES = list(LoadMode)
GATES = [None, *PauseMode]
TORN = Facts(weights=Weights.TORN)


async def test_staged_swap_in_order() -> None:
    rig = make_rig()
    report = await rig.controller.update(update_from("A", version="7"))
    assert rig.engine.calls == ["pause", "write", "commit", "flush", "resume"]
    # The source is let go before the pause.
    assert rig.steps.passed == ["open", "close", "pause", "write", "commit", "flush", "resume"]
    assert rig.engine.values() == {1.0}
    assert report.stamp == WeightStamp(version="7", update_count=1, epoch=1)
    assert rig.controller.stamp == rig.engine.stamp == report.stamp
    assert rig.controller.last_update is report
    assert (report.tensors_applied, report.bytes_applied) == (3, 48)
    rig.assert_rested()


async def test_direct_swap_in_order() -> None:
    rig = make_rig()
    report = await rig.controller.update(update_from("A", mode=LoadMode.DIRECT))
    assert rig.steps.passed == [
        *("open", "pause", "write", "write", "write", "commit", "flush", "resume", "close")
    ]
    assert report.load_mode is LoadMode.DIRECT
    assert rig.engine.values() == {1.0}
    rig.assert_rested()


@pytest.mark.parametrize("mode", MODES)
async def test_without_flush_the_cache_is_kept(mode: LoadMode) -> None:
    rig = make_rig()
    rig.engine.cached = 5
    report = await rig.controller.update(update_from("A", mode=mode, flush_cache=False))
    assert "flush" not in rig.engine.calls
    assert (report.flushed_cache, report.entries_cleared, rig.engine.cached) == (False, 0, 5)
    report = await rig.controller.update(update_from("B", mode=mode))
    assert (report.flushed_cache, report.entries_cleared, rig.engine.cached) == (True, 5, 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("requests", [0, 2])
async def test_update_under_every_pause_returns_and_leaves_the_gate(
    mode: LoadMode, gate: PauseMode | None, requests: int
) -> None:
    """A4: an update never waits for requests that only a later resume could end."""
    rig = make_rig()
    async with rig.controller as controller:
        if gate is not None:
            await controller.pause(gate)
            rig.engine.in_flight = InFlightCounts(running=requests, holding_kv=requests)
        report = await controller.update(update_from("B", mode=mode))
        assert controller.machine.facts == Facts(gate=gate)
        assert report.num_paused_requests == (requests if gate else 0)
        assert report.num_aborted_requests == 0
        assert rig.engine.values() == {2.0}
        rig.assert_rested()
        await controller.resume()
        assert rig.engine.in_flight.running == report.num_paused_requests
        rig.assert_rested()


async def test_paused_update_neither_pauses_nor_resumes() -> None:
    rig = make_rig()
    await rig.controller.pause(PauseMode.ABORT)
    rig.engine.calls.clear()
    await rig.controller.update(update_from("A"))
    assert rig.engine.calls == ["write", "commit", "flush"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("weights", [Weights.TORN, Weights.NEVER_LOADED])
@pytest.mark.parametrize("gate", GATES)
async def test_full_update_makes_weights_whole_and_the_gate_decides(
    mode: LoadMode, weights: Weights, gate: PauseMode | None
) -> None:
    rig = make_rig(facts=Facts(weights=weights, gate=gate))
    async with rig.controller as controller:
        assert not rig.engine.forward
        assert controller.not_ready_reasons() == ["paused", "weights_not_whole"]
        await controller.update(update_from("A", mode=mode))
        assert controller.machine.facts == Facts(gate=gate)
        assert rig.engine.forward is (gate is None)
        rig.assert_rested()


async def test_partial_update_changes_its_part_and_reports_the_rest() -> None:
    rig = make_rig()
    await rig.controller.pause(PauseMode.ABORT)
    report = await rig.controller.update(update_from("part", scope=Scope.PARTIAL))
    assert report.missing == ("a", "c")
    assert report.tensors_applied == 1
    assert {name: float(tensor[0]) for name, tensor in rig.engine.weights.items()} == {
        "a": 0.0,
        "b": 3.0,
        "c": 0.0,
    }


async def test_labels_are_kept_unless_given_and_counts_go_up() -> None:
    rig = make_rig(stamp=WeightStamp(version="default", token_step=3))
    await rig.controller.update(update_from("A"))
    assert rig.controller.stamp == WeightStamp(
        version="default", token_step=3, update_count=1, epoch=1
    )
    await rig.controller.update(replace(update_from("B", version="b"), token_step=9))
    assert rig.controller.stamp == WeightStamp(version="b", token_step=9, update_count=2, epoch=2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("in_flight", [0, 2])
@pytest.mark.parametrize("wanted", GATES)
async def test_swap_meets_requests_as_the_update_asks(
    mode: LoadMode, in_flight: int, wanted: PauseMode | None
) -> None:
    rig = make_rig()
    rig.run_requests(in_flight)
    update = update_from("A", mode=mode, pause_mode=wanted)
    if in_flight and wanted is None:
        with pytest.raises(InFlight, match="abort_all_requests"):
            await rig.controller.update(update)
        assert rig.steps.passed == []  # refused before the source was opened
        assert rig.controller.counters.updates["fake", "refused"] == 1
        rig.assert_rested()
        return
    swap = asyncio.ensure_future(rig.controller.update(update))
    if in_flight and wanted is PauseMode.WAIT:
        while "pause" not in rig.steps.passed:
            await anyio.lowlevel.checkpoint()
        rig.engine.finish_requests()
    report = await swap
    assert rig.engine.modes == [wanted or PauseMode.RETRACT]
    lives = wanted in (PauseMode.RETRACT, PauseMode.IN_PLACE)
    assert report.num_paused_requests == (in_flight if lives else 0)
    assert report.num_aborted_requests == (in_flight if wanted is PauseMode.ABORT else 0)
    assert rig.controller.machine.facts == Facts()
    rig.assert_rested()


@pytest.mark.parametrize(
    ("gate", "wanted", "asked", "aborted"),
    [
        (PauseMode.IN_PLACE, PauseMode.ABORT, [PauseMode.ABORT], 2),
        (PauseMode.IN_PLACE, PauseMode.RETRACT, [PauseMode.RETRACT], 0),
        (PauseMode.RETRACT, PauseMode.IN_PLACE, [], 0),
        (PauseMode.RETRACT, PauseMode.WAIT, [], 0),
    ],
)
async def test_update_under_a_pause_may_treat_frozen_requests_harder(
    gate: PauseMode, wanted: PauseMode, asked: list[PauseMode], aborted: int
) -> None:
    rig = make_rig()
    rig.run_requests(2)
    await rig.controller.pause(gate)
    rig.engine.modes.clear()
    report = await rig.controller.update(update_from("A", pause_mode=wanted))
    assert rig.engine.modes == asked
    assert report.num_aborted_requests == aborted
    assert report.num_paused_requests == 2 - aborted
    assert rig.controller.machine.facts == Facts(gate=gate)


async def test_frozen_requests_of_a_torn_server_can_be_aborted_by_the_update() -> None:
    rig = make_rig(facts=TORN)
    async with rig.controller as controller:
        rig.run_requests(2)
        report = await controller.update(update_from("A", pause_mode=PauseMode.ABORT))
        assert report.num_aborted_requests == 2
        rig.assert_rested()


async def test_request_that_arrives_while_staging_refuses_the_update_untouched() -> None:
    rig = make_rig()
    hold = rig.steps.hold("close")
    update = asyncio.ensure_future(rig.controller.update(update_from("A", version="1")))
    await hold.arrived.wait()
    await rig.controller.admission.enter()  # still serving
    rig.run_requests(1)
    hold.release()
    with pytest.raises(InFlight, match="requests are in flight"):
        await update
    assert rig.engine.calls == []
    assert rig.controller.stamp == WeightStamp()
    rig.assert_rested()


@pytest.mark.parametrize("mode", MODES)
async def test_illegal_updates_are_refused_before_the_source_is_opened(mode: LoadMode) -> None:
    refusals = [
        (TORN, update_from("part", scope=Scope.PARTIAL, mode=mode), "send a full update"),
        (Facts(weights=Weights.RELEASED), update_from("A", mode=mode), "wake the tag"),
    ]
    for facts, update, message in refusals:
        rig = make_rig(facts=facts)
        async with rig.controller as controller:
            with pytest.raises(IllegalCommand, match=message):
                await controller.update(update)
            assert rig.strategy.seen == []
            assert controller.machine.facts == facts
            rig.assert_rested()


async def test_update_while_only_the_kv_cache_sleeps() -> None:
    rig = make_rig(facts=Facts(kv=Kv.RELEASED))
    async with rig.controller as controller:
        await controller.update(update_from("A"))
        assert controller.machine.state is State.SLEEPING
        assert controller.not_ready_reasons() == ["paused", "sleeping"]
        rig.assert_rested()


async def test_unknown_strategy_names_the_dist() -> None:
    rig = make_rig()
    with pytest.raises(
        UpdateRejected, match=r"'rsync'.*installed: fake.*pip install hotswap-rsync"
    ):
        await rig.controller.update(replace(update_from("A"), strategy="rsync"))
    assert rig.controller.counters.updates["rsync", "rejected"] == 1


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("faek", r"\(installed: fake\): did you mean 'fake'\?$"),
        ("dsik", r"did you mean 'disk'\? That comes with pip install hotswap-disk, then restart"),
        ("disk", r"\(installed: fake\): pip install hotswap-disk, then restart the server$"),
        ("; rm -rf", r"no strategy's name; send one that is installed$"),
        ("x" * 65, r"no strategy's name; send one that is installed$"),
    ],
)
async def test_a_misspelt_strategy_is_told_what_was_meant(asked: str, told: str) -> None:
    rig = make_rig()
    with pytest.raises(UpdateRejected, match=told):
        await rig.controller.update(replace(update_from("A"), strategy=asked))


async def test_strategy_sees_the_update_and_the_placement() -> None:
    rig = make_rig()
    update = update_from("A")
    await rig.controller.update(update)
    [(seen, placement)] = rig.strategy.seen
    assert seen is update
    assert (placement.rank, placement.world_size) == (0, 1)


@pytest.mark.parametrize("gate", [None, PauseMode.RETRACT])
async def test_report_says_what_each_part_took(gate: PauseMode | None) -> None:
    rig = make_rig()
    if gate:
        await rig.controller.pause(gate)
    held, writing = rig.steps.hold("close"), rig.steps.hold("write")
    began = time.perf_counter()
    update = asyncio.ensure_future(rig.controller.update(update_from("A")))
    staging_ms = await milliseconds_held(held)
    paused_ms = await milliseconds_held(writing)
    report = await update
    elapsed_ms = (time.perf_counter() - began) * 1000
    assert report.staged_ms >= staging_ms > 0
    assert report.paused_ms >= paused_ms > 0
    assert report.staged_ms + report.paused_ms <= report.elapsed_ms <= elapsed_ms


async def milliseconds_held(hold: Hold) -> float:
    await hold.arrived.wait()
    begun = time.perf_counter()
    await anyio.lowlevel.checkpoint()
    elapsed = time.perf_counter() - begun
    hold.release()
    return elapsed * 1000


async def test_pre_read_hooks_run_in_order_before_the_source_is_opened() -> None:
    log = list[object]()

    async def first(source: str, version: str | None) -> None:
        log.append(("first", source, version, list(rig.steps.passed)))

    async def second(source: str, version: str | None) -> None:
        log.append(("second", source, version, list(rig.steps.passed)))

    rig = make_rig(pre_read=[first, PreReadHook(name="hotswap-x", call=second)])
    await rig.controller.update(update_from("A", version="3"))
    assert log == [("first", "A", "3", []), ("second", "A", "3", [])]


class Awkward:
    """A hook that is an object, with nothing but a repr to name it by."""

    def __repr__(self) -> str:
        return "<Awkward hook>"

    async def __call__(self, source: str, version: str | None) -> None:
        raise ValueError("cannot see it")


async def refusing(source: str, version: str | None) -> None:
    raise UpdateRejected(f"{source} is not there yet")


async def test_failing_pre_read_hook_rejects_and_is_named() -> None:
    async def named(source: str, version: str | None) -> None:
        raise UpdateRejected("hotswap-y says no")

    hooks: list[tuple[PreRead, str]] = [
        (Awkward(), "<Awkward hook>: pre-read hook failed: ValueError: cannot see it"),
        (refusing, "pre-read hook refusing: A is not there yet"),
        (PreReadHook(name="hotswap-y", call=named), "^hotswap-y says no$"),
    ]
    for hook, message in hooks:
        rig = make_rig(pre_read=[hook])
        with pytest.raises(UpdateRejected, match=message):
            await rig.controller.update(update_from("A"))
        assert rig.steps.passed == []
        rig.assert_rested()


async def test_slow_pre_read_hook_rejects_and_is_named() -> None:
    async def slow(source: str, version: str | None) -> None:
        await anyio.sleep_forever()

    rig = make_rig(pre_read=[PreReadHook(name="hotswap-slow", call=slow, timeout_s=0.01)])
    with pytest.raises(UpdateRejected, match=r"hotswap-slow.*longer than 0.01 s"):
        await rig.controller.update(update_from("A"))
    rig.assert_rested()


async def test_same_checkpoint_three_times_changes_nothing() -> None:
    rig = make_rig()
    for _ in range(3):
        await rig.controller.update(update_from("A"))
        assert torch.equal(rig.engine.weights["a"], torch.ones(4))
    assert rig.controller.stamp.epoch == 3


async def test_one_that_was_decided_on_other_weights_stops_nothing() -> None:
    rig = make_rig()
    hold = rig.steps.hold("open")
    late = replace(update_from("A", version="late"), only_epoch=0)
    waits = asyncio.get_running_loop().create_task(rig.controller.update(late))
    await hold.arrived.wait()
    # By a relabel the weights stay what they are, and so does the epoch.
    await rig.controller.relabel("other")
    hold.release()
    assert (await waits).stamp.epoch == 1
    before = list(rig.engine.calls)
    with pytest.raises(UpdateRejected, match="those of epoch 1 by now, wanted the 0"):
        await rig.controller.update(late)
    assert rig.engine.calls == before
    assert rig.controller.stamp == WeightStamp(version="late", update_count=1, epoch=1)
    rig.assert_rested()
