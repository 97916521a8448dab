"""Pulls of published versions: how they end, and what they cost."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from hotswap.metrics.bounded import BoundedLabel
from hotswap.pulls import PullNews

__all__ = ["PullMetrics"]

_LONG_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class PullMetrics:
    """Hears what the puller tells its observers. Event-loop thread only."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._outcome = BoundedLabel()
        self._pulls = Counter(
            "hotswap_pulls_total",
            "Pulls by outcome, and by mode when they were done.",
            ("outcome", "mode"),
            registry=registry,
        )
        self._running = Gauge(
            "hotswap_pulls_in_progress", "Pulls that are not over.", registry=registry
        )
        self._read = Counter(
            "hotswap_pull_read_bytes_total", "Bytes that pulls have read.", registry=registry
        )
        self._written = Counter(
            "hotswap_pull_written_bytes_total",
            "Bytes that pulls have written to the local disk, journals included.",
            registry=registry,
        )
        self._elapsed = Histogram(
            "hotswap_pull_elapsed_seconds",
            "From a pull's arrival to its end.",
            buckets=_LONG_S,
            registry=registry,
        )
        self._phases = Counter(
            "hotswap_pull_phase_seconds_total",
            "Seconds that pulls have spent, by phase.",
            ("phase",),
            registry=registry,
        )
        self._version = Gauge(
            "hotswap_pull_local_version",
            "The version that the directory of the last pull holds, whole.",
            registry=registry,
        )

    def __repr__(self) -> str:
        return "<PullMetrics>"

    def note_pull(self, news: PullNews) -> None:
        """A pull took a step."""
        if news.outcome is None:
            if news.progress is None:
                self._running.inc()
            return
        self._running.dec()
        report = news.report
        mode = "none" if report is None else str(report.mode)
        self._pulls.labels(self._outcome(news.outcome), mode).inc()
        if report is None:
            self._note_version(getattr(news.error, "local_version", None))
            return
        self._note_version(report.version)
        self._read.inc(report.read_bytes)
        self._written.inc(report.written_bytes)
        self._elapsed.observe(news.elapsed_s)
        for phase, seconds in report.seconds.items():
            self._phases.labels(phase).inc(seconds)

    def _note_version(self, version: int | None) -> None:
        if version is not None:
            self._version.set(version)
