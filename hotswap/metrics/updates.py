"""Updates and commands: how they end, and what they cost."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from hotswap.attempt import UpdateNews
from hotswap.metrics.bounded import BoundedLabel
from hotswap.state import Change
from hotswap.types import CommitMode

__all__ = ["UpdateMetrics"]

_LONG_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_PAUSED_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class UpdateMetrics:
    """Hears what the controller tells its observers. Event-loop thread only."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def seconds(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, buckets=buckets, registry=registry)

        self._strategy = BoundedLabel()
        self._updates = Counter(
            "hotswap_updates_total",
            "Weight updates by strategy and outcome.",
            ("strategy", "outcome"),
            registry=registry,
        )
        self._commands = Counter(
            "hotswap_commands_total",
            "Commands that the state machine ran, by outcome: done, undone or torn.",
            ("command", "outcome"),
            registry=registry,
        )
        self._entered = Counter(
            "hotswap_state_entered_total",
            "How often each state was entered.",
            ("state",),
            registry=registry,
        )
        self._bytes = Counter(
            "hotswap_update_bytes_total", "Bytes that updates have applied.", registry=registry
        )
        self._commits = Counter(
            "hotswap_update_commits_total",
            "Updates that have changed the weights, by what they wrote: full or sparse.",
            ("mode",),
            registry=registry,
        )
        for mode in CommitMode:
            self._commits.labels(mode)
        self._elements = Counter(
            "hotswap_update_elements_moved_total",
            "Elements of weights that updates have written; of sparse ones, those that changed.",
            registry=registry,
        )
        self._staged = seconds(
            "hotswap_update_staged_seconds", "From an update's arrival to staged bytes.", _LONG_S
        )
        self._paused = seconds(
            "hotswap_update_paused_seconds", "How long an update stopped forward passes.", _PAUSED_S
        )
        self._elapsed = seconds(
            "hotswap_update_elapsed_seconds", "From an update's arrival to its end.", _LONG_S
        )

    def __repr__(self) -> str:
        return "<UpdateMetrics>"

    def note_update(self, news: UpdateNews) -> None:
        """An update took a step; only the last one is counted."""
        if news.outcome is None:
            return
        self._updates.labels(self._strategy(news.update.strategy), news.outcome).inc()
        if news.report is not None:
            self._bytes.inc(news.report.bytes_applied)
            self._commits.labels(news.report.commit_mode).inc()
            self._elements.inc(news.report.elements_moved)
            self._staged.observe(news.report.staged_ms / 1000.0)
            self._paused.observe(news.report.paused_ms / 1000.0)
            self._elapsed.observe(news.report.elapsed_ms / 1000.0)

    def note_change(self, change: Change) -> None:
        """The facts changed, or a command ended."""
        before, after = change.states
        if before is not after:
            self._entered.labels(after).inc()
        if change.outcome is not None:
            self._commands.labels(change.command, change.outcome).inc()
