"""A controller on a fake engine and a fake source, and what has to hold when it rests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import anyio
import torch

from hotswap.controller import Controller, PauseReport
from hotswap.fetch import PreRead
from hotswap.state import Activity, Change, Facts, forward_allowed
from hotswap.testing.fakes import FakeEngine, FakeStrategy, Steps, fake_weights
from hotswap.types import InFlightCounts, LoadMode, PauseMode, Scope, Update, WeightStamp

__all__ = ["CANCELS", "SOURCES", "Cancel", "Rig", "make_rig", "settle", "update_from"]

SOURCES: Mapping[str, Mapping[str, torch.Tensor]] = {
    "A": fake_weights(1.0),
    "B": fake_weights(2.0),
    "part": fake_weights(3.0, names=("b",)),
    "wrong": {**fake_weights(4.0), "c": torch.zeros(5)},
}
"""What an update may name: two whole checkpoints, a part, and one of a wrong shape."""


def update_from(
    source: str,
    *,
    version: str | None = None,
    mode: LoadMode = LoadMode.STAGED,
    scope: Scope = Scope.FULL,
    pause_mode: PauseMode | None = None,
    flush_cache: bool = True,
) -> Update:
    """An update from the fake strategy."""
    return Update(
        source=source,
        strategy="fake",
        version=version,
        mode=mode,
        scope=scope,
        pause_mode=pause_mode,
        flush_cache=flush_cache,
    )


@dataclass(slots=True, kw_only=True)
class Rig:
    """Everything that a test of the controller touches."""

    engine: FakeEngine
    strategy: FakeStrategy
    controller: Controller
    steps: Steps

    def run_requests(self, count: int) -> None:
        """Have ``count`` requests generating."""
        self.engine.in_flight = InFlightCounts(running=count, holding_kv=count)

    async def start_draining(self, requests: int = 2) -> asyncio.Task[PauseReport]:
        """A pause(wait), the first of this rig, that waits for ``requests`` to finish."""
        self.run_requests(requests)
        pause = asyncio.get_running_loop().create_task(self.controller.pause(PauseMode.WAIT))
        await settle()
        assert self.engine.modes == [PauseMode.WAIT]
        assert not pause.done()
        return pause

    def assert_rested(self) -> None:
        """Nothing runs, nothing is held, and the engine is as the facts say."""
        facts = self.controller.machine.facts
        assert facts.busy is Activity.NOTHING, facts
        assert self.controller.queue.idle, self.controller.queue
        assert not self.controller.admission.closing
        assert self.engine.forward == forward_allowed(facts), (self.engine, facts)
        assert self.strategy.entered == self.strategy.left, "a stage was not released"
        if forward_allowed(facts):
            assert len(self.engine.values()) == 1, f"mixed and serving: {self.engine.values()}"


async def settle() -> None:
    """Let every task that can run do so."""
    for _ in range(20):
        await anyio.lowlevel.cancel_shielded_checkpoint()


def make_rig(
    *,
    weights: Mapping[str, torch.Tensor] | None = None,
    facts: Facts | None = None,
    stamp: WeightStamp | None = None,
    pre_read: Sequence[PreRead] = (),
    changed: Sequence[Callable[[Change], None]] = (),
    queue_wait_s: float = 30.0,
    while_paused: str = "reject",
    hold_s: float = 60.0,
) -> Rig:
    """A rig whose engine holds ``weights`` (all zeros) and whose source has ``SOURCES``."""
    steps = Steps()
    engine = FakeEngine(weights, steps=steps)
    strategy = FakeStrategy(sources=SOURCES, steps=steps)
    controller = Controller(
        engine,
        strategies={"fake": strategy},
        facts=facts,
        stamp=stamp,
        pre_read=pre_read,
        changed=changed,
        queue_wait_s=queue_wait_s,
        while_paused=while_paused,
        hold_s=hold_s,
    )
    return Rig(engine=engine, strategy=strategy, controller=controller, steps=steps)


Cancel = Callable[[Steps, int, Callable[[], Awaitable[object]]], Awaitable[bool]]
"""Makes the call and cancels it at the n-th await of the fakes from now.

False when the call ended before that await. What the call raises is raised.
"""


async def _by_scope(steps: Steps, at: int, call: Callable[[], Awaitable[object]]) -> bool:
    before = len(steps.passed)
    with anyio.CancelScope() as scope:
        steps.act_at(at, scope.cancel)
        await call()
    return len(steps.passed) - before > at


async def _by_task(steps: Steps, at: int, call: Callable[[], Awaitable[object]]) -> bool:
    before = len(steps.passed)

    async def run() -> None:
        await call()

    task = asyncio.get_running_loop().create_task(run())
    steps.act_at(at, task.cancel)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return len(steps.passed) - before > at


CANCELS: Mapping[str, Cancel] = {"scope": _by_scope, "task": _by_task}
"""Both ways to cancel: an anyio scope (a disconnect), a task (``asyncio.wait_for``)."""
