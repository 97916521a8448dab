"""Hypothesis walks the controller beside a small model of what a client expects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotswap.errors import (
    HotswapError,
    IllegalCommand,
    InFlight,
    Paused,
    UpdateFailed,
    UpdateRejected,
    WeightsNotWhole,
)
from hotswap.state import Facts, Weights
from hotswap.testing.rig import Rig, make_rig, update_from
from hotswap.types import InFlightCounts, LoadMode, PauseMode, Scope, WeightStamp

WHOLE, TORN = Weights.WHOLE, Weights.TORN
VALUES = {"A": 1.0, "B": 2.0}


@dataclass(slots=True)
class Model:
    """What a client knows: the gate, whether the weights are whole, requests, the label."""

    gate: PauseMode | None = None
    weights: Weights = WHOLE
    requests: int = 0
    stamp: WeightStamp = field(default_factory=WeightStamp)
    value: float = 0.0

    @property
    def serving(self) -> bool:
        return self.gate is None and self.weights is WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    source: str
    mode: LoadMode
    pause_mode: PauseMode | None
    broken: bool


@dataclass(frozen=True, slots=True)
class Pause:
    mode: PauseMode


MOVES = st.one_of(
    st.builds(Pause, st.sampled_from(PauseMode)),
    st.sampled_from(["resume", "flush", "arrive", "arrive", "finish"]),
    st.builds(
        Update,
        source=st.sampled_from(["A", "B", "wrong", "part"]),
        mode=st.sampled_from(LoadMode),
        pause_mode=st.sampled_from([None, PauseMode.ABORT, PauseMode.RETRACT]),
        broken=st.booleans(),
    ),
)


async def expect(error: type[HotswapError], call: Awaitable[object]) -> None:
    with pytest.raises(HotswapError) as caught:
        await call
    assert type(caught.value) is error


async def pause(rig: Rig, model: Model, mode: PauseMode) -> None:
    if mode is PauseMode.WAIT and model.serving:
        finish(rig, model)
    report = await rig.controller.pause(mode)
    model.gate = max(mode, model.gate or mode, key=lambda m: m.strength)
    assert report.mode is model.gate
    assert report.num_aborted == (model.requests if model.gate is PauseMode.ABORT else 0)
    if model.gate is PauseMode.ABORT:
        model.requests = 0


async def resume(rig: Rig, model: Model) -> None:
    if model.weights is TORN:
        await expect(IllegalCommand, rig.controller.resume())
        return
    await rig.controller.resume()
    model.gate = None


async def flush(rig: Rig, model: Model) -> None:
    rig.engine.cached = 3
    if rig.engine.in_flight.holding_kv:
        await expect(InFlight, rig.controller.flush())
    else:
        assert await rig.controller.flush() == 3


async def arrive(rig: Rig, model: Model) -> None:
    if model.weights is TORN:
        await expect(WeightsNotWhole, rig.controller.admission.enter())
    elif model.gate is not None:
        await expect(Paused, rig.controller.admission.enter())
    else:
        await rig.controller.admission.enter()
        model.requests += 1
        rig.engine.in_flight = InFlightCounts(running=model.requests, holding_kv=model.requests)


def finish(rig: Rig, model: Model) -> None:
    if model.serving:
        rig.engine.finish_requests()
        model.requests = 0


async def update(rig: Rig, model: Model, move: Update, turn: int) -> None:
    scope = Scope.PARTIAL if move.source == "part" else Scope.FULL
    if scope is Scope.PARTIAL and model.weights is WHOLE and not move.broken:
        return  # a part would leave two values in the fake's weights, by right
    request = update_from(
        move.source,
        version=str(turn),
        mode=move.mode,
        scope=scope,
        pause_mode=move.pause_mode,
    )
    before = len(rig.engine.calls)
    if model.serving and model.requests and move.pause_mode is None:
        await expect(InFlight, rig.controller.update(request))
        assert len(rig.engine.calls) == before
        return
    if scope is Scope.PARTIAL and model.weights is TORN:
        await expect(IllegalCommand, rig.controller.update(request))
        assert len(rig.engine.calls) == before
        return
    if move.source == "wrong":
        await expect(UpdateRejected, rig.controller.update(request))
        assert len(rig.engine.calls) == before
        return
    if move.pause_mode is PauseMode.ABORT and model.gate is not PauseMode.ABORT:
        model.requests = 0
    if move.broken:
        for at in range(2):  # once would roll a staged update forward
            rig.steps.fail("commit", RuntimeError("broken"), at=at)
        await expect(UpdateFailed, rig.controller.update(request))
        rig.steps.forget_failures()
        model.weights = TORN
        return
    report = await rig.controller.update(request)
    model.weights, model.value = WHOLE, VALUES[move.source]
    model.stamp = replace(
        model.stamp,
        version=str(turn),
        update_count=model.stamp.update_count + 1,
        epoch=model.stamp.epoch + 1,
    )
    assert report.stamp == model.stamp


def check(rig: Rig, model: Model) -> None:
    assert rig.controller.machine.facts == Facts(gate=model.gate, weights=model.weights)
    assert rig.controller.stamp == model.stamp
    assert rig.engine.in_flight.total == model.requests
    assert rig.controller.admission.open is model.serving
    assert (rig.controller.not_ready_reasons() == []) is model.serving
    if model.weights is WHOLE:
        assert rig.engine.values() == {model.value}
        assert rig.engine.stamp == model.stamp
    rig.assert_rested()


async def walk(moves: list[Pause | str | Update]) -> None:
    rig, model = make_rig(), Model()
    async with rig.controller:
        for turn, move in enumerate(moves):
            if isinstance(move, Pause):
                await pause(rig, model, move.mode)
            elif isinstance(move, Update):
                await update(rig, model, move, turn)
            elif move == "finish":
                finish(rig, model)
            else:
                await {"resume": resume, "flush": flush, "arrive": arrive}[move](rig, model)
            check(rig, model)


@settings(max_examples=120, deadline=None)
@given(st.lists(MOVES, max_size=15))
def test_controller_does_what_its_model_does(moves: list[Pause | str | Update]) -> None:
    asyncio.run(walk(moves))


def test_walk_reaches_every_state_that_the_model_has() -> None:
    """The walk above is not vacuous: this one tears, repairs, pauses and swaps."""
    full = Update(source="B", mode=LoadMode.STAGED, pause_mode=None, broken=False)
    moves: list[Pause | str | Update] = [
        *("arrive", replace(full, pause_mode=PauseMode.RETRACT), "finish"),
        *(Pause(PauseMode.IN_PLACE), replace(full, broken=True), "arrive", "resume"),
        *(replace(full, source="part"), replace(full, mode=LoadMode.DIRECT), "resume", "flush"),
        *(replace(full, source="wrong"), replace(full, source="A")),
    ]
    asyncio.run(walk(moves))
