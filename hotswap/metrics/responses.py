"""HTTP responses by the route that the app declares, never by the path that was asked for."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from hotswap.metrics.bounded import OTHER

__all__ = ["UNMATCHED", "ResponseMetrics"]

UNMATCHED = "unmatched"
"""The route of a request that none serves, or that was refused before one was found."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class ResponseMetrics:
    """Counts responses as they begin. Event-loop thread only."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._responses = Counter(
            "hotswap_http_responses_total",
            "HTTP responses by route template, method and status.",
            ("route", "method", "status"),
            registry=registry,
        )

    def __repr__(self) -> str:
        return "<ResponseMetrics>"

    def note(self, *, route: str | None, method: str, status: int) -> None:
        """A response begins. ``route`` is a template, None for an unknown one."""
        method = method if method in _METHODS else OTHER
        self._responses.labels(route or UNMATCHED, method, str(status)).inc()
