"""How long an update takes, against copying the same bytes in the same minute.

Each load mode has a server process of its own. Rounds of baseline copy, baseline
load and update follow each other, so that whatever else the machine does hits both
sides alike; the best of each is compared. The baselines' spread says how far to
trust a ratio.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from contrib.bench.baseline import BaselineProcess
from contrib.bench.machine import THREADS, describe_machine, warm_page_cache
from contrib.bench.model import LARGE, checkpoint
from contrib.bench.results import Measure, Report, ratio_of_bests, spread
from contrib.bench.server import Server

__all__ = ["run"]

PAUSED_LIMIT = 1.3
DIRECT_LIMIT = 1.3
STAGED_LIMIT = 3.0
# Above this the baseline disagrees with itself more than the limits leave room for.
NOISY_SPREAD = 0.3


@dataclass(slots=True)
class _Rounds:
    """Milliseconds of every round of one load mode; the index is the round."""

    mode: str
    copy_ms: list[float] = field(default_factory=list)
    load_ms: list[float] = field(default_factory=list)
    round_trip_ms: list[float] = field(default_factory=list)
    paused_ms: list[float] = field(default_factory=list)
    staged_ms: list[float] = field(default_factory=list)
    elapsed_ms: list[float] = field(default_factory=list)
    load_average: list[float] = field(default_factory=list)
    server: Mapping[str, object] = field(default_factory=dict)

    @property
    def noise(self) -> float:
        """The worse of the two baselines' spreads."""
        return max(spread(self.copy_ms), spread(self.load_ms))

    def samples(self) -> dict[str, Sequence[float]]:
        """Every figure by name."""
        kinds = ("copy_ms", "load_ms", "round_trip_ms", "paused_ms", "staged_ms", "elapsed_ms")
        named = {f"{self.mode}.{kind}": getattr(self, kind) for kind in kinds}
        return {**named, f"{self.mode}.load_average": self.load_average}


def run(*, rounds: int) -> Report:
    """Staged, then direct, ``rounds`` times each."""
    directories = checkpoint(LARGE, "a"), checkpoint(LARGE, "b")
    warm_page_cache(*directories)
    with BaselineProcess(directories, threads=THREADS) as baseline:
        staged = _measure(baseline, mode="staged", rounds=rounds)
        direct = _measure(baseline, mode="direct", rounds=rounds)
        baseline_configuration = baseline.configuration
    return Report(
        name="updates",
        configuration={
            "machine": describe_machine(),
            "baseline": baseline_configuration,
            "staged_server": staged.server,
            "direct_server": direct.server,
            "rounds": rounds,
        },
        measures=[*_staged_measures(staged), *_direct_measures(direct)],
        samples={**staged.samples(), **direct.samples()},
    )


def _measure(baseline: BaselineProcess, *, mode: str, rounds: int) -> _Rounds:
    directories = checkpoint(LARGE, "a"), checkpoint(LARGE, "b")
    figures = _Rounds(mode=mode)
    options = ("--load-mode", mode)
    with Server(directories[0], threads=THREADS, options=options) as server:
        figures.server = server.configuration()
        baseline.copy()
        baseline.load()
        server.update(directories[1])  # the first one of a process pays for its memory
        for turn in range(rounds):
            figures.load_average.append(os.getloadavg()[0])
            figures.copy_ms.append(1000 * baseline.copy().total_s)
            figures.load_ms.append(1000 * baseline.load().total_s)
            reply = server.update(directories[turn % 2])
            figures.round_trip_ms.append(reply["round_trip_ms"])
            figures.paused_ms.append(reply["paused_ms"])
            figures.staged_ms.append(reply["staged_ms"])
            figures.elapsed_ms.append(reply["elapsed_ms"])
    return figures


def _staged_measures(rounds: _Rounds) -> list[Measure]:
    return [
        *_absolute(rounds),
        ratio_of_bests(
            "staged: paused / copy_", rounds.paused_ms, rounds.copy_ms, limit=PAUSED_LIMIT
        ),
        ratio_of_bests(
            "staged: whole / (load_file + copy_)",
            rounds.round_trip_ms,
            rounds.load_ms,
            limit=STAGED_LIMIT,
        ),
    ]


def _direct_measures(rounds: _Rounds) -> list[Measure]:
    return [
        *_absolute(rounds),
        ratio_of_bests(
            "direct: whole / (load_file + copy_)",
            rounds.round_trip_ms,
            rounds.load_ms,
            limit=DIRECT_LIMIT,
        ),
    ]


def _absolute(rounds: _Rounds) -> list[Measure]:
    noise = rounds.noise
    warning = "NOISY: run again on an idle machine" if noise > NOISY_SPREAD else ""
    shown = {
        "baseline copy_": rounds.copy_ms,
        "baseline load_file + copy_": rounds.load_ms,
        "paused": rounds.paused_ms,
        "whole (round trip)": rounds.round_trip_ms,
    }
    return [
        *(
            Measure(
                name=f"{rounds.mode}: {name}",
                value=min(values),
                unit="ms",
                note=f"best of {len(values)}, spread {spread(values):.0%}",
            )
            for name, values in shown.items()
        ),
        Measure(name=f"{rounds.mode}: noise of the baselines", value=noise, unit="x", note=warning),
    ]
