"""What is known of one update so far."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum

from hotswap.foreign import words_of
from hotswap.seams import Plan
from hotswap.sparse.commit import SparseTransaction
from hotswap.sparse.origin import Origin
from hotswap.state import Command
from hotswap.transaction import Transaction
from hotswap.types import CommitMode, Update, UpdateReport, WeightStamp

__all__ = ["Attempt", "Phase", "Progress", "UpdateNews"]


class Phase(StrEnum):
    """Where an update is: before its source, at its source, in line, or at the weights."""

    WAITING = "waiting"
    STAGING = "staging"
    QUEUED = "queued"
    COMMITTING = "committing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How much of an update's source is held in host memory, or written (*direct*).

    Tensors and bytes are those of the live model, and grow by whole buckets.
    """

    tensors_done: int
    tensors_total: int
    bytes_done: int
    bytes_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateNews:
    """Where an update has got to, for observers. ``number`` counts a controller's updates.

    ``outcome`` is None until it is over, then one of ``Counters.updates``; ``report``
    comes with weights that have changed, ``error`` with an update that raised one.
    ``progress`` is None until it is known what the source has. ``origin`` is which bytes that
    was, where it is known, told at the end.
    """

    number: int
    update: Update
    phase: Phase
    outcome: str | None = None
    report: UpdateReport | None = None
    error: BaseException | None = None
    progress: Progress | None = None
    origin: Origin | None = None


_PROGRESS = tuple(part.name for part in fields(Progress))


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One call of update. Times are ``time.perf_counter()``.

    ``outcome`` is None until the weights have changed for good, then ``committed``
    or ``rolled_forward``, and ``result`` what that did. ``stopped`` is when forward
    passes ended for its sake. ``tell`` hears of every step. ``origin`` is which bytes its
    source has, where that is known; with ``whole`` all of them are loaded.
    """

    update: Update
    number: int = 0
    tell: Callable[[UpdateNews], None] = lambda _news: None
    command: Command = Command.UPDATE
    phase: Phase = Phase.WAITING
    outcome: str | None = None
    result: UpdateReport | None = None
    started: float = field(default_factory=time.perf_counter)
    staged: float = 0.0
    stopped: float = 0.0
    num_aborted: int = 0
    num_paused: int = 0
    entries_cleared: int = 0
    origin: Origin | None = None
    whole: bool = False
    _totals: tuple[int, int] | None = field(default=None, init=False, repr=False)
    _transaction: Transaction | SparseTransaction | None = field(
        default=None, init=False, repr=False
    )

    def __str__(self) -> str:
        update = self.update
        version = "" if update.version is None else f" version {update.version}"
        return f"{update.strategy} update from {words_of(update.source)}{version}"

    def enter(self, phase: Phase) -> None:
        """Be in ``phase`` from now on, and tell."""
        self.phase = phase
        self.tell(
            UpdateNews(number=self.number, update=self.update, phase=phase, progress=self._progress)
        )

    def fill(self, plan: Plan, transaction: Transaction | SparseTransaction) -> None:
        """Be known to bring what ``plan`` names, by ``transaction``."""
        sizes = [spec.size_bytes for spec in plan.specs.values()]
        self._totals, self._transaction = (len(sizes), sum(sizes)), transaction

    @property
    def _progress(self) -> Progress | None:
        if self._totals is None or self._transaction is None:
            return None
        tensors, held_bytes = self._transaction.held_so_far
        return Progress(
            tensors_done=tensors,
            tensors_total=self._totals[0],
            bytes_done=held_bytes,
            bytes_total=self._totals[1],
        )

    def end(self, outcome: str, error: BaseException | None = None) -> None:
        """Tell that it is over."""
        self.tell(
            UpdateNews(
                number=self.number,
                update=self.update,
                phase=self.phase,
                outcome=outcome,
                report=self.result,
                error=error,
                progress=self._progress,
                origin=self.origin,
            )
        )

    def fields(self, outcome: str) -> dict[str, object]:
        """What a log line for programs says of its end."""
        update, report = self.update, self.result
        told: dict[str, object] = {
            "update": self.number,
            "strategy": update.strategy,
            "source": words_of(update.source),
            "weight_version": update.version,
            "outcome": outcome,
        }
        if report is None:
            return told
        return told | {
            "weight_epoch": report.stamp.epoch,
            "weight_version": report.stamp.version,
            "bytes": report.bytes_applied,
            "commit_mode": str(report.commit_mode),
            "elements_moved": report.elements_moved,
            "staged_ms": report.staged_ms,
            "paused_ms": report.paused_ms,
            "elapsed_ms": report.elapsed_ms,
        }

    def progress(self) -> dict[str, object]:
        """What an operator wants to know of an update that is not over, in JSON types."""
        known = self._progress
        return {
            "source": words_of(self.update.source),
            "strategy": self.update.strategy,
            "version": self.update.version,
            "phase": self.phase,
            "since_ms": (time.perf_counter() - self.started) * 1000.0,
            **(dict.fromkeys(_PROGRESS) if known is None else asdict(known)),
        }

    def report(self, plan: Plan, stamp: WeightStamp) -> UpdateReport:
        """The reply, once forward passes are allowed again (or as before)."""
        now = time.perf_counter()
        report = UpdateReport(
            stamp=stamp,
            tensors_applied=len(plan.specs),
            bytes_applied=sum(spec.size_bytes for spec in plan.specs.values()),
            flushed_cache=self.update.flush_cache,
            entries_cleared=self.entries_cleared,
            num_aborted_requests=self.num_aborted,
            num_paused_requests=self.num_paused,
            load_mode=self.update.mode,
            staged_ms=(self.staged - self.started) * 1000.0,
            paused_ms=(now - self.stopped) * 1000.0,
            elapsed_ms=(now - self.started) * 1000.0,
            missing=plan.missing,
            unknown=plan.unknown,
            elements_moved=sum(spec.numel for spec in plan.specs.values()),
        )
        if not isinstance(self._transaction, SparseTransaction):
            return report
        changes = self._transaction.changes
        return replace(
            report,
            commit_mode=CommitMode.SPARSE,
            elements_moved=changes.elements,
            bytes_applied=changes.size_bytes,
        )
