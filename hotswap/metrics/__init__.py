"""What a server measures, in Prometheus form."""

from hotswap.metrics.bounded import BoundedLabel
from hotswap.metrics.exposition import Exposition
from hotswap.metrics.gauges import LiveServer, ServerGauges
from hotswap.metrics.pulls import PullMetrics
from hotswap.metrics.requests import RequestMetrics, WatchedGeneration
from hotswap.metrics.responses import ResponseMetrics
from hotswap.metrics.updates import UpdateMetrics

__all__ = [
    "BoundedLabel",
    "Exposition",
    "LiveServer",
    "PullMetrics",
    "RequestMetrics",
    "ResponseMetrics",
    "ServerGauges",
    "UpdateMetrics",
    "WatchedGeneration",
]
