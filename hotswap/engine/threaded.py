"""An engine whose model, cache and weights belong to one thread: commands go there.

For engines of plug-ins too. Bring a scheduler, which decides about forward passes, wrap
it in :class:`WeightSteps`, and make a :class:`ThreadedEngine` of that: commands, writes
and looks at the weights then run on the engine's thread, one at a time, never beside a
forward pass. Add ``in_flight`` and ``plan``, and it is an ``Engine``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import anyio
import anyio.to_thread
import torch

from hotswap.engine.gate import Gate, GateState, PauseTicket
from hotswap.engine.loop import EngineLoop
from hotswap.engine.model_plan import ModelPlan
from hotswap.seams import EnginePause, Plan
from hotswap.types import Bucket, Manifest, PauseMode, WeightStamp
from hotswap.weights.target import WeightTarget

__all__ = [
    "EngineLoop",
    "Gate",
    "GateState",
    "PassScheduler",
    "PauseTicket",
    "ThreadedEngine",
    "WeightSteps",
]


class PassScheduler(Protocol):
    """Decides about forward passes. The engine's thread calls it, and nobody else.

    ``gate`` and ``stamp`` may be looked at on every thread.
    """

    @property
    def gate(self) -> Gate:
        """Whether passes may run; no pass begins while it is closed."""
        ...

    @property
    def stamp(self) -> WeightStamp:
        """The weights of the next forward pass."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would run a forward pass; never while the gate is closed."""
        ...

    def step(self) -> None:
        """Run one forward pass."""
        ...

    def pause(self, ticket: PauseTicket) -> None:
        """Meet requests by the ticket's mode; ``gate`` answers it once nothing runs."""
        ...

    def resume(self) -> None:
        """Open the gate; what was parked goes on."""
        ...

    def flush(self) -> int:
        """Drop what was computed and kept; how many entries."""
        ...

    def commit(self, stamp: WeightStamp) -> None:
        """Put ``stamp`` on everything from now on; nothing older is used again."""
        ...

    def end_all(self, reason: str) -> int:
        """End every request with ``reason``; how many."""
        ...


SchedulerT = TypeVar("SchedulerT", bound=PassScheduler)


class WeightSteps(Generic[SchedulerT]):
    """Satisfies ``loop.Steps``: a scheduler, and the weights between its steps.

    Engine thread only, ``eos`` excepted: the tokens that end a text, those of the weights
    that were committed.
    """

    def __init__(
        self, scheduler: SchedulerT, target: WeightTarget, *, eos: frozenset[int] = frozenset()
    ) -> None:
        self.scheduler: SchedulerT = scheduler
        self.target: WeightTarget = target
        self.eos: frozenset[int] = eos
        self._written: Plan | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.scheduler!r}>"

    @property
    def has_work(self) -> bool:
        """Whether there is a forward pass to run."""
        return self.scheduler.has_work

    def step(self) -> None:
        """Run one forward pass."""
        self.scheduler.step()

    def publish(self) -> None:
        """Send out what commands and steps have produced; by itself nothing."""

    def shut(self, error: BaseException | None) -> None:
        """End every request, and every pause that still waits."""
        self.scheduler.end_all("abort" if error is None else "error")
        self.scheduler.gate.fail(RuntimeError("the engine's thread has ended"))

    def write(self, plan: Plan, bucket: Bucket) -> None:
        """Copy a bucket into the live weights. Raises: RuntimeError while not paused."""
        self._check_paused("write")
        self._written = plan
        self.target.write(plan, bucket)

    def patch(self, plan: Plan | None, jobs: Sequence[Callable[[], None]]) -> None:
        """See ``seams.Patchable``. Raises: RuntimeError while not paused."""
        self._check_paused("patch")
        self._written = plan
        self.target.patch(jobs)

    def commit(self, stamp: WeightStamp) -> None:
        """Finish the writes; adopt ``stamp``, and the ends of text that came with them.

        Raises: RuntimeError while not paused.
        """
        self._check_paused("commit")
        self.target.finish()
        self.scheduler.commit(stamp)
        # Only now: an update that failed half way leaves them as they were.
        written, self._written = self._written, None
        if isinstance(written, ModelPlan) and written.eos_token_ids is not None:
            self.eos = written.eos_token_ids

    def reset(self, skipped: Sequence[str]) -> tuple[str, ...]:
        """Fill weights with noise; which. Raises: RuntimeError while not paused."""
        self._check_paused("reset")
        return self.target.reset(skipped)

    def read(self, name: str, rows: int) -> torch.Tensor:
        """First rows of a weight, a copy on the CPU. Raises: KeyError."""
        return self.target.read(name, rows)

    def checksums(self) -> dict[str, str]:
        """Of every parameter and buffer."""
        return self.target.checksums()

    def _check_paused(self, what: str) -> None:
        state = self.scheduler.gate.state
        if state is not GateState.CLOSED:
            raise RuntimeError(f"{what} while the gate is {state}; pause the engine first")


StepsT = TypeVar("StepsT", bound="WeightSteps[Any]")


class ThreadedEngine(Generic[StepsT]):
    """Commands of ``seams.Engine``, ``Inspector``, ``Patchable`` and ``Resettable``, on a thread.

    Use it as an async context manager: that starts and ends its one thread. Commands are
    for one event loop. Subclasses have the thread as ``_loop``, and ``_steps``.
    """

    def __init__(self, steps: StepsT, *, name: str = "hotswap-engine") -> None:
        self._steps = steps
        self._loop = EngineLoop(steps, name=name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._loop!r}>"

    # --- life

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.close)

    def start(self) -> None:
        """Start the engine's thread; once."""
        self._loop.start()

    def close(self) -> None:
        """End every request with ``abort``, and the thread. Blocks; idempotent."""
        self._loop.close()

    # --- what is live; any thread

    @property
    def alive(self) -> bool:
        """Whether the engine's thread runs. Any thread."""
        return self._loop.alive

    @property
    def stamp(self) -> WeightStamp:
        """The weights of the next forward pass."""
        stamp: WeightStamp = self._steps.scheduler.stamp
        return stamp

    def manifest(self) -> Manifest:
        """What a full update has to bring."""
        return self._steps.target.manifest()

    # --- commands; event loop

    async def pause(self, mode: PauseMode) -> EnginePause:
        """See ``seams.Engine.pause``. Raises: Overtaken when a resume ends a drain."""
        ticket, scheduler = PauseTicket(mode), self._steps.scheduler
        try:
            await self._loop.call(partial(scheduler.pause, ticket))
            return await asyncio.wrap_future(ticket.answer)
        except asyncio.CancelledError:
            # Without a thread there is no gate left to put back.
            with anyio.CancelScope(shield=True), suppress(RuntimeError):
                await self._loop.call(partial(scheduler.gate.take_back, ticket))
            raise

    async def resume(self) -> None:
        """Let forward passes run; a pause that still drains gets Overtaken."""
        await self._loop.call(self._steps.scheduler.resume)

    async def flush(self) -> int:
        """Drop every cached prefix and its counters; how many entries went."""
        return await self._loop.call(self._steps.scheduler.flush)

    async def write(self, plan: Plan, bucket: Bucket) -> None:
        """Copy a bucket into the live weights. Raises: RuntimeError while not paused."""
        await self._loop.call(partial(self._steps.write, plan, bucket))

    async def commit(self, stamp: WeightStamp) -> None:
        """Finish the writes and adopt ``stamp``. Raises: RuntimeError while not paused."""
        await self._loop.call(partial(self._steps.commit, stamp))

    async def look(self, job: Callable[[], None]) -> None:
        """See ``seams.Patchable``; between two forward passes."""
        await self._loop.call(job)

    async def patch(self, plan: Plan | None, jobs: Sequence[Callable[[], None]]) -> None:
        """See ``seams.Patchable``. Raises: RuntimeError while not paused."""
        await self._loop.call(partial(self._steps.patch, plan, jobs))

    async def beat(self) -> None:
        """Return between two forward passes: proof that the engine's thread turns."""
        await self._loop.call(lambda: None)

    async def reset_weights(self, skipped: Sequence[str]) -> tuple[str, ...]:
        """See ``seams.Resettable``. Raises: RuntimeError while not paused."""
        return await self._loop.call(partial(self._steps.reset, skipped))

    async def read_weight(self, name: str, rows: int) -> torch.Tensor:
        """See ``seams.Inspector``. Raises: KeyError."""
        return await self._loop.call(partial(self._steps.read, name, rows))

    async def checksums(self) -> dict[str, str]:
        """See ``seams.Inspector``; between two forward passes."""
        return await self._loop.call(self._steps.checksums)
