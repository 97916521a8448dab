"""A fake engine and a fake source that record what is done to them.

Both hold real tensors, check the contracts of ``hotswap.seams`` as they are called,
fail when told to, and can be held open at any call. Every ``await`` inside them goes
through one :class:`Steps`, where a test may cancel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType

import anyio
import torch

from hotswap.errors import UpdateRejected
from hotswap.seams import EnginePause, Plan
from hotswap.types import (
    Bucket,
    InFlightCounts,
    Manifest,
    PauseMode,
    Payload,
    Placement,
    Readable,
    Scope,
    TensorSpec,
    Update,
    WeightStamp,
    member,
)

__all__ = [
    "FakeEngine",
    "FakePlan",
    "FakeStage",
    "FakeStrategy",
    "Hold",
    "Steps",
    "fake_weights",
]


def fake_weights(
    value: float, *, names: Iterable[str] = ("a", "b", "c")
) -> dict[str, torch.Tensor]:
    """Small float32 tensors ``[4]``, all of ``value``, by name."""
    return {name: torch.full((4,), value) for name in names}


class Hold:
    """A call that stays open: ``arrived`` once it was made, goes on after ``release``."""

    def __init__(self) -> None:
        self.arrived: anyio.Event = anyio.Event()
        self._released = anyio.Event()

    def release(self) -> None:
        """Let the call go on."""
        self._released.set()

    async def wait(self) -> None:
        """Arrive, and wait for the release."""
        self.arrived.set()
        await self._released.wait()


class Steps:
    """Every await of the fakes, counted, so that a test can act at the n-th of them."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self._at: int | None = None
        self._act: Callable[[], object] | None = None
        self._failures: dict[tuple[str, int], BaseException] = {}
        self._holds: dict[str, list[Hold]] = {}
        self._counts: dict[str, int] = {}

    def act_at(self, number: int, act: Callable[[], object]) -> None:
        """Call ``act`` when the ``number``-th await from now begins (counting from 0)."""
        self._at, self._act = len(self.passed) + number, act

    def fail(self, name: str, error: BaseException, *, at: int = 0) -> None:
        """Raise ``error`` in the ``at``-th call of ``name`` from now."""
        self._failures[name, self._counts.get(name, 0) + at] = error

    def forget_failures(self) -> None:
        """Let every call that has not failed yet succeed."""
        self._failures.clear()

    def hold(self, name: str) -> Hold:
        """Keep the next call of ``name`` open until the Hold is released."""
        hold = Hold()
        self._holds.setdefault(name, []).append(hold)
        return hold

    def failure(self, name: str) -> None:
        """Count a call of ``name`` and raise what was scripted for it."""
        count = self._counts[name] = self._counts.get(name, 0) + 1
        error = self._failures.pop((name, count - 1), None)
        if error is not None:
            raise error

    async def step(self, name: str) -> None:
        """One await inside ``name``: the place to be cancelled, held or failed."""
        self.passed.append(name)
        if self._act is not None and len(self.passed) - 1 == self._at:
            act, self._act = self._act, None
            act()
        await anyio.lowlevel.checkpoint()
        holds = self._holds.get(name)
        if holds:
            await holds.pop(0).wait()
        self.failure(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakePlan:
    """What a :class:`FakeEngine` plans; satisfies ``Plan``."""

    specs: Mapping[str, TensorSpec]
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class FakeEngine:
    """An engine whose weights are a few tensors and whose requests are numbers.

    ``calls`` is the log. ``in_flight`` may be set. ``forward`` says whether forward
    passes run; writing while they do is an AssertionError.
    """

    def __init__(
        self, weights: Mapping[str, torch.Tensor] | None = None, *, steps: Steps | None = None
    ) -> None:
        self.weights: dict[str, torch.Tensor] = dict(weights or fake_weights(0.0))
        self.steps: Steps = steps or Steps()
        self.calls: list[str] = []
        self.modes: list[PauseMode] = []
        self.in_flight: InFlightCounts = InFlightCounts()
        self.forward: bool = True
        self.cached: int = 0
        self.stamp: WeightStamp = WeightStamp()
        self.asleep: frozenset[str] = frozenset()
        self.keeps: bool = False
        self._idle = anyio.Event()
        self._pauses = 0

    def __repr__(self) -> str:
        return f"<FakeEngine {'running' if self.forward else 'paused'} {self.in_flight}>"

    def values(self) -> set[float]:
        """Every value in the live weights: one of them if they are not mixed."""
        return {value for tensor in self.weights.values() for value in tensor.tolist()}

    def finish_requests(self) -> None:
        """Every request in flight has finished."""
        self.in_flight = InFlightCounts()
        self._wake()

    def _wake(self) -> None:
        self._idle.set()
        self._idle = anyio.Event()

    def manifest(self) -> Manifest:
        """A full update: every tensor."""
        return Manifest.of(_spec(name, tensor) for name, tensor in self.weights.items())

    def plan(self, manifest: Manifest, scope: Scope) -> Plan:
        """Names and shapes have to fit. Raises: UpdateRejected naming what does not."""
        scope = member(Scope, scope, what="scope")
        self.steps.failure("plan")
        live = self.manifest()
        unknown = [name for name in manifest.names if name not in live]
        missing = tuple(name for name in live.names if name not in manifest)
        wrong = [
            str(spec)
            for spec in manifest.tensors
            if spec.name in live and spec.shape != live[spec.name].shape
        ]
        if unknown or wrong or (missing and scope is Scope.FULL):
            raise UpdateRejected(f"unknown {unknown}, missing {list(missing)}, wrong {wrong}")
        return FakePlan(specs={name: live[name] for name in manifest.names}, missing=missing)

    async def pause(self, mode: PauseMode) -> EnginePause:
        """Stop forward passes; ``wait`` waits for ``finish_requests``, paused already or not."""
        mode = member(PauseMode, mode, what="pause mode")
        self.calls.append("pause")
        self.modes.append(mode)
        await self.steps.step("pause")
        pauses = self._pauses
        while mode is PauseMode.WAIT and self.in_flight.total and self._pauses == pauses:
            await self._idle.wait()
        self.forward = False
        aborted = self.in_flight.total if mode is PauseMode.ABORT else 0
        if mode is PauseMode.ABORT:
            self.in_flight = InFlightCounts()
        elif mode is PauseMode.RETRACT:
            self.in_flight = InFlightCounts(waiting=self.in_flight.total)
        if mode is not PauseMode.WAIT:
            # A pause that drains is over: this one has stopped what it waited for.
            self._pauses += 1
            self._wake()
        return EnginePause(num_aborted=aborted, since=time.perf_counter())

    async def resume(self) -> None:
        """Let forward passes run; parked requests hold KV again."""
        self.calls.append("resume")
        await self.steps.step("resume")
        self.forward = True
        total = self.in_flight.total
        self.in_flight = InFlightCounts(running=total, holding_kv=total)

    async def flush(self) -> int:
        """Forget ``cached`` prefixes; how many there were."""
        self.calls.append("flush")
        await self.steps.step("flush")
        cached, self.cached = self.cached, 0
        return cached

    async def write(self, plan: Plan, bucket: Bucket) -> None:
        """Copy tensor by tensor; a scripted failure of ``tensor`` comes between two."""
        self.calls.append("write")
        assert not self.forward, "weights written while forward passes run"
        await self.steps.step("write")
        for name, payload in bucket:
            self.steps.failure("tensor")
            assert name in plan.specs, f"{name} was never planned"
            self.weights[name].copy_(_dense(payload))

    async def commit(self, stamp: WeightStamp) -> None:
        """Adopt ``stamp``."""
        self.calls.append("commit")
        assert not self.forward, "committed while forward passes run"
        await self.steps.step("commit")
        self.stamp = stamp

    async def reset_weights(self, skipped: Sequence[str]) -> tuple[str, ...]:
        """Fill with -1; a scripted failure of ``tensor`` comes between two."""
        self.calls.append("reset")
        assert not self.forward, "weights reset while forward passes run"
        await self.steps.step("reset")
        names = [name for name in self.weights if not any(part in name for part in skipped)]
        for name in names:
            self.steps.failure("tensor")
            self.weights[name].fill_(-1.0)
        return tuple(names)

    async def sleep(self, tags: frozenset[str]) -> None:
        """Note ``tags``; weights are -2 from then on, and no prefix is cached."""
        self.calls.append("sleep")
        assert not self.forward, "memory released while forward passes run"
        await self.steps.step("sleep")
        self.asleep |= tags
        for tensor in self.weights.values() if "weights" in tags else ():
            tensor.fill_(-2.0)
        if "kv_cache" in tags:
            assert not self.in_flight.holding_kv, "a request held KV whose memory was released"
            self.cached = 0

    async def wake(self, tags: frozenset[str]) -> bool:
        """Note it; whether ``keeps``."""
        self.calls.append("wake")
        assert not self.forward, "memory taken again while forward passes run"
        await self.steps.step("wake")
        self.asleep -= tags
        return self.keeps


class FakeStage:
    """Delivers ``weights``, ``per_bucket`` tensors at a time."""

    def __init__(
        self,
        weights: Mapping[str, Payload],
        *,
        steps: Steps,
        per_bucket: int = 1,
        promised: Manifest | None = None,
        before_bucket: Callable[[], None] | None = None,
    ) -> None:
        self._weights = dict(weights)
        self._steps = steps
        self._per_bucket = per_bucket
        self._before_bucket = before_bucket
        self.manifest: Manifest = promised or Manifest.of(_spec(n, t) for n, t in weights.items())
        self.open = True

    def buckets(self) -> Iterator[Bucket]:
        """Every tensor once. A scripted failure of ``bucket`` comes before one of them."""
        items = list(self._weights.items())
        for start in range(0, len(items), self._per_bucket):
            assert self.open, "the stage was read after it had been released"
            if self._before_bucket is not None:
                self._before_bucket()
            self._steps.failure("bucket")
            yield items[start : start + self._per_bucket]


@dataclass(slots=True, kw_only=True)
class FakeStrategy:
    """Opens a :class:`FakeStage` on whatever ``sources`` has under the update's source.

    ``entered`` and ``left`` count; equal numbers mean that nothing is held.
    ``before_bucket`` is called on the worker thread that reads, before each bucket.
    """

    sources: Mapping[str, Mapping[str, Payload]]
    steps: Steps = field(default_factory=Steps)
    per_bucket: int = 1
    promised: Manifest | None = None
    before_bucket: Callable[[], None] | None = None
    entered: int = 0
    left: int = 0
    seen: list[tuple[Update, Placement]] = field(default_factory=list)

    def open(self, update: Update, placement: Placement) -> _Opening:
        """A context that yields the stage. Raises: UpdateRejected for no such source."""
        self.seen.append((update, placement))
        return _Opening(self, update.source)


class _Opening:
    def __init__(self, strategy: FakeStrategy, source: str) -> None:
        self._strategy = strategy
        self._source = source
        self._stage: FakeStage | None = None

    async def __aenter__(self) -> FakeStage:
        strategy = self._strategy
        await strategy.steps.step("open")
        if self._source not in strategy.sources:
            raise UpdateRejected(f"there is no source {self._source!r}")
        self._stage = FakeStage(
            strategy.sources[self._source],
            steps=strategy.steps,
            per_bucket=strategy.per_bucket,
            promised=strategy.promised,
            before_bucket=strategy.before_bucket,
        )
        strategy.entered += 1
        return self._stage

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._stage is not None
        self._stage.open = False
        self._strategy.left += 1
        await self._strategy.steps.step("close")


def _dense(payload: Payload) -> torch.Tensor:
    if isinstance(payload, torch.Tensor):
        return payload
    out = torch.empty(payload.spec.shape, dtype=payload.spec.dtype)
    payload.read_into(out)
    return out


def _spec(name: str, payload: Payload) -> TensorSpec:
    if isinstance(payload, Readable):
        return replace(payload.spec, name=name)
    return TensorSpec(name=name, dtype=payload.dtype, shape=tuple(payload.shape))
