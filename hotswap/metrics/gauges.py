"""What is true of the server at the moment of a scrape.

Rule: only values that may be read on any thread and wait for nobody: each is replaced
as a whole by whoever changes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from hotswap._version import __version__
from hotswap.foreign import words_of
from hotswap.state import State
from hotswap.types import InFlightCounts, WeightStamp

__all__ = ["LiveServer", "ServerGauges"]

_MAX_VERSION_CHARACTERS = 128


class LiveServer(Protocol):
    """Where the gauges look. Any thread; nothing waits."""

    @property
    def state(self) -> State:
        """The state now."""
        ...

    @property
    def stamp(self) -> WeightStamp:
        """Which weights are live."""
        ...

    @property
    def in_flight(self) -> InFlightCounts:
        """Requests inside the engine."""
        ...

    @property
    def numbers(self) -> Iterable[tuple[str, str, float]]:
        """Further ones: name, what it says, value. A counter's name ends in ``_total``."""
        ...


class ServerGauges(Collector):
    """State, weights and requests, as they are."""

    def __init__(self, server: LiveServer) -> None:
        self._server = server

    def __repr__(self) -> str:
        return f"<ServerGauges {self._server.state}>"

    def collect(self) -> Iterator[Metric]:
        """Read everything once."""
        server = self._server
        yield _states(server.state)
        yield from _weights(server.stamp)
        in_flight = server.in_flight
        yield _gauge("hotswap_requests_running", "Requests in forward passes.", in_flight.running)
        yield _gauge("hotswap_requests_waiting", "Requests that wait to run.", in_flight.waiting)
        for name, text, value in server.numbers:
            counts = name.endswith("_total")
            yield (CounterMetricFamily if counts else GaugeMetricFamily)(name, text, value=value)
        yield InfoMetricFamily("hotswap_build", "This program.", value={"version": __version__})


def _states(now: State) -> Metric:
    family = GaugeMetricFamily(
        "hotswap_state", "1 for the state that the server is in.", labels=("state",)
    )
    for state in State:
        family.add_metric((state,), float(state is now))
    return family


def _weights(stamp: WeightStamp) -> Iterator[Metric]:
    yield _gauge("hotswap_weight_epoch", "Commits so far; never repeats.", stamp.epoch)
    version = words_of(stamp.version or "")[:_MAX_VERSION_CHARACTERS]
    yield InfoMetricFamily(
        "hotswap_weights",
        "The live weights: the label that a client gave them, and their epoch.",
        value={"version": version, "epoch": str(stamp.epoch)},
    )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
