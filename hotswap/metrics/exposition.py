"""Collectors of one app, rendered in Prometheus's text format.

Rules:

* No global registry: two apps in one process measure apart.
* A collector that fails costs its own metrics and no others.
* Of two families with one name the earlier collector's is shown.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hotswap.foreign import shown

__all__ = ["CONTENT_TYPE", "Exposition"]

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
"""What :meth:`Exposition.render` makes."""

_log = logging.getLogger("hotswap.metrics")


class Exposition:
    """Everything that one app shows. ``registry`` is for the server's own instruments."""

    def __init__(self) -> None:
        self.registry: CollectorRegistry = CollectorRegistry()
        self._collectors: list[Collector] = [self.registry]
        self._failed: set[int] = set()

    def __repr__(self) -> str:
        return f"<Exposition of {len(self._collectors)} collectors>"

    def register(self, collector: Collector) -> None:
        """Show what ``collector`` collects as well; the way in for plug-ins.

        An instrument of ``prometheus_client`` made with ``registry=None`` is one. It is
        called on a worker thread at each scrape, and should not take long.
        """
        self._collectors.append(collector)

    def render(self) -> bytes:
        """One scrape. Blocks as long as the collectors do; any one thread at a time."""
        taken: set[str] = set()
        return b"".join(self._rendered(collector, taken) for collector in self._collectors)

    def _rendered(self, collector: Collector, taken: set[str]) -> bytes:
        try:
            families = [_shown(family) for family in collector.collect()]
            text = generate_latest(_Families([f for f in families if f.name not in taken]))
        except BaseException:
            # On a thread, so that whatever it is, it is the collector's own. Once: a scrape
            # comes every few seconds, for ever.
            if id(collector) not in self._failed:
                self._failed.add(id(collector))
                _log.exception("a metrics collector failed and is left out: %s", shown(collector))
            return b""
        taken.update(family.name for family in families)
        return text


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _shown(family: Metric) -> Metric:
    """Without the times of creation, which double the number of series and tell nobody."""
    shown = Metric(family.name, family.documentation, family.type, family.unit)
    shown.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    return shown
