"""What generation has left while the server pulls 1 GB versions on one thread.

A greedy stream decodes and ``/health`` is asked every 100 ms on a connection of its own: every
20 ms, as ``health`` does, would by itself make its longest steps twice as long. The seed
(a copy of the checkpoint) and then one xor version after the other are pulled, back to back, as
trainers do it before they pause anything. The tokens a second while pulls run are compared with
those of the same stream before, probes included; the longest gap between two tokens that overlaps
a pull counts, whichever pull it was. The pulls go to the disk of ``.bench/``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from contrib.bench.health import Prober
from contrib.bench.machine import THREADS, describe_machine, warm_page_cache
from contrib.bench.model import LARGE, checkpoint
from contrib.bench.paths import BENCH_DIR
from contrib.bench.pull_stream import published
from contrib.bench.results import Measure, Report, quantile
from contrib.bench.server import Server
from contrib.bench.token_gap import Listener

__all__ = ["longest_gap_s", "rate", "run"]

KEPT_SHARE = 0.4
LIMIT_MS = 250.0
_PROBED_EVERY_S = 0.1
_TOKENS_BEFORE = 40
_TOKENS_AFTER = 2

Span: TypeAlias = tuple[float, float]
"""From when to when, ``perf_counter``."""


def run(*, rounds: int) -> Report:
    """The seed and ``rounds`` + 1 versions, under one stream."""
    base = checkpoint(LARGE, "a")
    source = published(base, versions=rounds + 1)
    warm_page_cache(base)
    with (
        tempfile.TemporaryDirectory(prefix="pull-", dir=BENCH_DIR) as folder,
        Server(base, threads=THREADS, options=("--pull-threads", "1")) as server,
    ):
        listener = Listener(server)
        try:
            listener.await_tokens(2)  # the first step took the prompt
            with Prober(server, interval_s=_PROBED_EVERY_S) as prober:
                begin = time.perf_counter()
                listener.await_tokens(_TOKENS_BEFORE)
                before = begin, time.perf_counter()
                seen = len(prober.latencies_ms)
                pulls = [
                    _pull(server, Path(folder) / "local", source, version)
                    for version in range(rounds + 2)
                ]
                latencies_ms = prober.latencies_ms[seen:]
            ends = [one.at for one in listener.await_tokens(1)]
            ends = [one.at for one in listener.await_tokens(len(ends) + _TOKENS_AFTER)]
        finally:
            listener.hang_up()
        configuration = {"machine": describe_machine(), "server": server.configuration()}
    return Report(
        name="pull_load",
        configuration={**configuration, "pulls": len(pulls)},
        measures=_measures(ends, before, pulls, latencies_ms),
        samples={
            "pull_s": [end - begin for begin, end in pulls],
            "gap_ms": [1000 * longest_gap_s(ends, [pull]) for pull in pulls],
            "latency_ms": latencies_ms,
        },
    )


def rate(ends: Sequence[float], spans: Sequence[Span]) -> float:
    """Tokens a second inside ``spans``; ``ends`` are when each came."""
    inside = sum(begin < at <= end for at in ends for begin, end in spans)
    return inside / sum(end - begin for begin, end in spans)


def longest_gap_s(ends: Sequence[float], spans: Sequence[Span]) -> float:
    """The longest wait between two tokens of which a part was inside one of ``spans``."""
    return max(
        second - first
        for first, second in pairwise(ends)
        if any(first < end and second > begin for begin, end in spans)
    )


def _pull(server: Server, local: Path, source: Path, version: int) -> Span:
    begin = time.perf_counter()
    body = {
        "local_checkpoint_dir": str(local),
        "source_dir": str(source),
        "target_version": version,
    }
    server.post("/pull_weights", body)
    return begin, time.perf_counter()


def _measures(
    ends: Sequence[float], before: Span, pulls: Sequence[Span], latencies_ms: Sequence[float]
) -> list[Measure]:
    alone, beside = rate(ends, [before]), rate(ends, pulls)
    seconds = [end - begin for begin, end in pulls]
    gaps_ms = [1000 * longest_gap_s(ends, [pull]) for pull in pulls]
    return [
        Measure(
            name="a pull, the median of the versions",
            value=quantile(seconds[1:], 0.5),
            unit="s",
            note=f"{len(pulls) - 1} versions; the seed took {seconds[0]:.1f} s",
        ),
        Measure(
            name="tokens a second before / while pulling",
            value=alone / beside if beside else float("inf"),
            unit="x",
            limit=1 / KEPT_SHARE,
            note=f"{alone:.1f} before, {beside:.1f} while pulling: {beside / alone:.0%}",
        ),
        Measure(
            name="longest gap between two tokens",
            value=max(gaps_ms),
            unit="ms",
            limit=LIMIT_MS,
            note=f"the median pull's {quantile(gaps_ms, 0.5):.0f} ms, the seed's "
            f"{gaps_ms[0]:.0f} ms; longest before any: "
            f"{1000 * longest_gap_s(ends, [before]):.0f} ms",
        ),
        Measure(
            name="/health p99 while pulling",
            value=quantile(latencies_ms, 0.99),
            unit="ms",
            limit=LIMIT_MS,
            note=f"{len(latencies_ms)} probes, slowest {max(latencies_ms):.0f} ms",
        ),
    ]
