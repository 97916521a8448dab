"""How long ``/health`` takes while 1 GB is being swapped.

Probes are due every 20 ms and each opens a connection of its own, as a load
balancer does. A probe's time counts from when it was due: a stalled server delays
the probes that come after, and those delays belong to the figure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from contrib.bench.machine import THREADS, describe_machine, warm_page_cache
from contrib.bench.model import LARGE, checkpoint
from contrib.bench.results import Measure, Report, quantile
from contrib.bench.server import Server

__all__ = ["Prober", "health_measures", "run"]

LIMIT_MS = 250.0
_INTERVAL_S = 0.020
_MODES = ("staged", "direct")
# Enough updates for some hundred probes, whatever --rounds says.
_MIN_UPDATES = 20


class Prober:
    """Probes while it is entered; ``latencies_ms`` after."""

    def __init__(self, server: Server, *, interval_s: float = _INTERVAL_S) -> None:
        self._server = server
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._probe, daemon=True)
        self._error: Exception | None = None
        self.latencies_ms: list[float] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise RuntimeError("/health failed during an update") from self._error

    def _probe(self) -> None:
        due = time.perf_counter()
        try:
            while not self._stop.wait(max(0.0, due - time.perf_counter())):
                self._server.get("/health")
                self.latencies_ms.append(1000 * (time.perf_counter() - due))
                due += self._interval_s
        except Exception as error:  # raised again by __exit__
            self._error = error


def run(*, rounds: int) -> Report:
    """Staged, then direct updates, back to back, with probes beside them."""
    directories = checkpoint(LARGE, "a"), checkpoint(LARGE, "b")
    warm_page_cache(*directories)
    updates = max(rounds, _MIN_UPDATES)
    latencies: dict[str, Sequence[float]] = {}
    servers: dict[str, object] = {}
    for mode in _MODES:
        with Server(directories[0], threads=THREADS, options=("--load-mode", mode)) as server:
            servers[f"{mode}_server"] = server.configuration()
            server.update(directories[1])
            with Prober(server) as prober:
                for turn in range(updates):
                    server.update(directories[turn % 2])
            latencies[f"{mode}.latency_ms"] = prober.latencies_ms
    return Report(
        name="health",
        configuration={"machine": describe_machine(), **servers, "updates": updates},
        measures=[
            one for mode in _MODES for one in health_measures(mode, latencies[f"{mode}.latency_ms"])
        ],
        samples=latencies,
    )


def health_measures(mode: str, latencies_ms: Sequence[float]) -> list[Measure]:
    """What a :class:`Prober` saw while ``mode`` ran, and the limit. Raises: ValueError if empty."""
    note = f"{len(latencies_ms)} probes, slowest {max(latencies_ms):.0f} ms"
    return [
        Measure(name=f"{mode}: /health p50", value=quantile(latencies_ms, 0.5), unit="ms"),
        Measure(
            name=f"{mode}: /health p99",
            value=quantile(latencies_ms, 0.99),
            unit="ms",
            limit=LIMIT_MS,
            note=note,
        ),
    ]
