"""What HTTP adds to a decode step at batch 8: the same engine, with it and without.

One process serves the model, and also decodes for a caller in Python. Both ways take
turns, eight texts each, and a round's figure is its median step: the time between two
tokens as the one who reads them sees it. The client is another process, and reads with
one thread (:mod:`contrib.bench.streams`); what it takes of the cores counts as well.

Beside it is the processor time that the server's event loop takes in a step, of an
engine's step: the neighbours' noise hardly touches it. It is what HTTP costs while the
engine waits for it all the time, and has a core of its own to run on otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from contrib.bench.generation_models import models
from contrib.bench.generation_side import SideProcess, prompts
from contrib.bench.machine import THREADS, describe_machine
from contrib.bench.process import thread_cpu_s
from contrib.bench.results import Measure, Report, quantile, spread
from contrib.bench.streams import Streams
from contrib.bench.turns import turns

__all__ = ["run", "steps"]

HTTP_OVERHEAD = 0.10
_BATCH = 8
_TOKENS = 24
# In the first steps of a round some texts are still at their prompts.
_UNEVEN_STEPS = 2
_WITHIN_S = 60.0


@dataclass(slots=True)
class _Samples:
    """Seconds: the median step of each round, and the event loop's processor time a step."""

    steps: list[float] = field(default_factory=list)
    loop_cpu: list[float] = field(default_factory=list)


def run(*, rounds: int) -> Report:
    """At most ``rounds`` with each number of threads."""
    model = models()[0]
    measures: list[Measure] = []
    samples: dict[str, Sequence[float]] = {}
    configuration: dict[str, object] = {"machine": describe_machine(), "rounds": rounds}
    for threads in sorted({1, THREADS}):
        direct, http, shown = _compare(model, threads=threads, rounds=rounds)
        name = f"{threads} thread{'s' * (threads > 1)}"
        configuration[name] = shown
        measures += _measures(name, direct, http)
        for way, one in (("direct", direct), ("http", http)):
            samples[f"{name}.{way}.step_s"] = one.steps
            samples[f"{name}.{way}.loop_cpu_s"] = one.loop_cpu
    return Report(
        name="generation_http", configuration=configuration, measures=measures, samples=samples
    )


def steps(arrivals: Sequence[Sequence[float]]) -> list[float]:
    """Seconds between the tokens of every text, once all of them decode."""
    return [after - before for one in arrivals for before, after in pairwise(one[_UNEVEN_STEPS:])]


def _compare(
    model: Path, *, threads: int, rounds: int
) -> tuple[_Samples, _Samples, dict[str, object]]:
    direct, http = _Samples(), _Samples()
    with SideProcess("contrib.bench.generation_served", str(model), str(threads)) as side:
        _direct(side, _Samples())
        _http(side, _Samples())  # the first of each pays for memory
        for turn in turns(rounds, within_s=_WITHIN_S):
            # Each goes first as often as the other.
            for way in (_direct, _http)[:: -1 if turn % 2 else 1]:
                way(side, direct if way is _direct else http)
        return direct, http, dict(side.configuration)


def _direct(side: SideProcess, kept: _Samples) -> None:
    before = thread_cpu_s(side.pid)[side.pid]
    arrivals = side.arrivals(batch=_BATCH, tokens=_TOKENS)
    _keep(side, kept, arrivals, before)


def _http(side: SideProcess, kept: _Samples) -> None:
    before = thread_cpu_s(side.pid)[side.pid]
    arrivals = Streams(side.configuration["port"], prompts(_BATCH), tokens=_TOKENS).end()
    _keep(side, kept, arrivals, before)
    side.arrivals(batch=0, tokens=0)  # empties the prefix cache, as a direct run does


def _keep(
    side: SideProcess, kept: _Samples, arrivals: Sequence[Sequence[float]], before: float
) -> None:
    # The main thread is the event loop's.
    kept.loop_cpu.append((thread_cpu_s(side.pid)[side.pid] - before) / _TOKENS)
    kept.steps.append(quantile(steps(arrivals), 0.5))


def _measures(name: str, direct: _Samples, http: _Samples) -> list[Measure]:
    without, beside = min(direct.steps), quantile(http.loop_cpu, 0.5)
    pairs = [one / other - 1 for one, other in zip(http.steps, direct.steps, strict=True)]
    return [
        Measure(
            name=f"{name}: a step beyond the engine's",
            value=min(http.steps) / without - 1,
            unit="x",
            limit=HTTP_OVERHEAD,
            note=f"{1000 * min(http.steps):.1f} against {1000 * without:.1f} ms, best of "
            f"{len(pairs)} (spread {spread(http.steps):.0%} and {spread(direct.steps):.0%}); "
            f"pairs {min(pairs):+.0%} to {max(pairs):+.0%}, median {quantile(pairs, 0.5):+.1%}",
        ),
        Measure(
            name=f"{name}: event loop's processor time in a step",
            value=beside / without,
            unit="x",
            limit=HTTP_OVERHEAD,
            note=f"{1000 * beside:.2f} ms, {1000 * quantile(direct.loop_cpu, 0.5):.2f} ms of it "
            "without HTTP; medians",
        ),
    ]
