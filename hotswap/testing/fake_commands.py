"""A controller that does as it is told, for tests of what stands in front of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import anyio

from hotswap.attempt import UpdateNews
from hotswap.coverage import Coverage
from hotswap.occupation import TAGS, MemoryMoved
from hotswap.state import Command, Machine, Outcome, Situation
from hotswap.testing.fakes import FakeEngine, fake_weights
from hotswap.types import LoadMode, PauseMode, Update, UpdateReport, WeightStamp
from hotswap.update_sessions import UpdateSessions
from hotswap.write_window import WriteWindow

__all__ = ["FakeAdmission", "FakeCommands", "FakeMemory", "FakePause"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FakePause:
    """What a pause did."""

    mode: PauseMode
    num_aborted: int


@dataclass(slots=True, kw_only=True)
class FakeCounters:
    """No counts but those of ``count_update``."""

    updates: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, dict[str, int]]:
        """What was counted by hand, and empty tables."""
        return {"commands": {}, "updates": dict(self.updates), "states": {}}

    def count_update(self, command: Command, strategy: str, outcome: str) -> None:
        """Count it."""
        key = f"{strategy}/{outcome}"
        self.updates[key] = self.updates.get(key, 0) + 1


@dataclass(slots=True, kw_only=True)
class FakeAdmission:
    """Raises ``refusal`` while it has one; waits for ``door`` while there is one."""

    refusal: Exception | None = None
    door: anyio.Event | None = None
    entering: int = 0

    async def enter(self) -> None:
        """As a real one would."""
        if self.refusal is not None:
            raise self.refusal
        if self.door is not None:
            self.entering += 1
            try:
                await self.door.wait()
            finally:
                self.entering -= 1


@dataclass(slots=True, kw_only=True)
class FakeMemory:
    """Lets go and takes again at once, and notes what it was asked for."""

    calls: list[str] = field(default_factory=list)
    asleep: frozenset[str] = frozenset()
    refusal: Exception | None = None

    async def sleep(
        self, tags: frozenset[str], *, pause_mode: PauseMode | None = None
    ) -> MemoryMoved:
        """One request was aborted, if any."""
        self._note(f"sleep {sorted(tags)} {pause_mode or '-'}")
        moved = (tags & TAGS) - self.asleep
        self.asleep |= moved
        return MemoryMoved(moved=moved, asleep=self.asleep, num_aborted=int(bool(pause_mode)))

    async def wake(self, tags: frozenset[str]) -> MemoryMoved:
        """No weights change."""
        self._note(f"wake {sorted(tags)}")
        moved = tags & self.asleep
        self.asleep -= moved
        return MemoryMoved(moved=moved, asleep=self.asleep)

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if self.refusal is not None:
            raise self.refusal


@dataclass(slots=True, kw_only=True)
class FakeCommands:
    """Raises ``refusal`` from every command while it has one, else succeeds.

    ``calls`` lists commands as they begin. ``gate`` keeps commands waiting until
    it is set; ``cancelled`` lists those whose wait was cancelled.
    """

    machine: Machine = field(default_factory=Machine)
    stamp: WeightStamp = field(default_factory=WeightStamp)
    last_update: UpdateReport | None = None
    coverage: Coverage = field(default_factory=lambda: Coverage(("a", "b")))
    counters: FakeCounters = field(default_factory=FakeCounters)
    admission: FakeAdmission = field(default_factory=FakeAdmission)
    writes: WriteWindow = field(default_factory=lambda: WriteWindow(wait_s=30.0))
    memory: FakeMemory = field(default_factory=FakeMemory)
    reasons: list[str] = field(default_factory=list)
    refusal: Exception | None = None
    gate: anyio.Event | None = None
    started: anyio.Event = field(default_factory=anyio.Event)
    calls: list[str] = field(default_factory=list)
    received: list[Update] = field(default_factory=list)
    updates: list[dict[str, object]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    observers: list[Callable[[UpdateNews], None]] = field(default_factory=list)
    sessions: UpdateSessions = field(init=False)

    def __post_init__(self) -> None:
        self.sessions = UpdateSessions(FakeEngine(fake_weights(0.0)), commit=self.update)

    def observe_updates(self, observer: Callable[[UpdateNews], None]) -> None:
        """Remember ``observer``, for the test to call."""
        self.observers.append(observer)

    def not_ready_reasons(self) -> list[str]:
        """What the test set."""
        return self.reasons

    async def pause(self, mode: PauseMode) -> FakePause:
        """Close the gate."""
        await self._run(f"pause {mode}")
        self._command(Command.PAUSE, mode=mode)
        return FakePause(mode=mode, num_aborted=2)

    async def resume(self) -> None:
        """Open the gate."""
        await self._run("resume")
        self._command(Command.RESUME)

    async def flush(self) -> int:
        """Three entries."""
        await self._run("flush")
        return 3

    async def update(self, update: Update) -> UpdateReport:
        """Commit at once."""
        self.sessions.refuse_others(update)
        await self._run("update")
        self.received.append(update)
        self.stamp = WeightStamp(
            version=update.version if update.version is not None else self.stamp.version,
            token_step=update.token_step
            if update.token_step is not None
            else self.stamp.token_step,
            update_count=self.stamp.update_count + 1,
            epoch=self.stamp.epoch + 1,
        )
        report = replace(_REPORT, stamp=self.stamp, load_mode=update.mode)
        self.last_update = report
        return report

    async def relabel(self, version: str, *, abort: bool = False) -> int:
        """Another label for the same weights; two requests were aborted, if any."""
        await self._run(f"relabel {version}{' abort' if abort else ''}")
        self.stamp = replace(self.stamp, version=version)
        return 2 if abort else 0

    async def reset(self, *, skipped: Sequence[str] = ()) -> tuple[str, ...]:
        """One weight."""
        await self._run(f"reset {list(skipped)}")
        self._command(Command.RESET)
        return ("embed.weight",)

    async def _run(self, call: str) -> None:
        self.calls.append(call)
        self.started.set()
        if self.gate is not None:
            try:
                await self.gate.wait()
            except BaseException:
                self.cancelled.append(call)
                raise
        if self.refusal is not None:
            raise self.refusal

    def _command(self, command: Command, mode: PauseMode = PauseMode.ABORT) -> None:
        now = Situation(mode=mode)
        self.machine.begin(command, now)
        self.machine.finish(Outcome.DONE, now)


_REPORT = UpdateReport(
    stamp=WeightStamp(),
    tensors_applied=310,
    bytes_applied=4096,
    flushed_cache=True,
    entries_cleared=3,
    num_aborted_requests=1,
    num_paused_requests=4,
    load_mode=LoadMode.STAGED,
    staged_ms=10.0,
    paused_ms=1.5,
    elapsed_ms=12.25,
)
