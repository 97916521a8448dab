"""Greedy decoding at batch 8: hotswap's engine and transformers' continuous batching.

The figure is tokens a second while all eight texts decode. Both sides compute in the
checkpoint's bfloat16. First every side's number of threads, and transformers' every
attention that it has on a CPU, is tried twice. Those within a fifth of their side's best
go on to the rounds, which alternate between the sides and stop when the time is up; the
best of each is compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from contrib.bench.generation_models import models
from contrib.bench.generation_side import SideProcess, joint_rate
from contrib.bench.machine import THREADS, describe_machine
from contrib.bench.results import Measure, Report, quantile, spread
from contrib.bench.turns import turns

__all__ = ["near_best", "run"]

WANTED_SPEEDUP = 1.2
_BATCH = 8
_TRIAL_TOKENS = 5
_TOKENS = 12
_TRIALS = 2
_WITHIN_S = 75.0
_NEAR = 0.8
_ATTENTIONS = ("sdpa", "paged|eager")
_SIDE = "contrib.bench.generation_side"

_Way = tuple[tuple[str, object], ...]
_Rates = dict[_Way, list[float]]


def run(*, rounds: int) -> Report:
    """Trials of every way, then at most ``rounds`` of the best."""
    model = str(models()[0])
    threads = sorted({1, THREADS})
    ours: list[_Way] = [(("threads", count),) for count in threads]
    theirs: list[_Way] = [
        (("threads", count), ("attention", name)) for count in threads for name in _ATTENTIONS
    ]
    with (
        SideProcess(_SIDE, "hotswap", model) as hotswap,
        SideProcess(_SIDE, "transformers", model) as transformers,
    ):
        trials: _Rates = {}
        for _ in range(_TRIALS):
            _measure(hotswap, ours, trials, tokens=_TRIAL_TOKENS)
            _measure(transformers, theirs, trials, tokens=_TRIAL_TOKENS)
        ours, theirs = near_best(ours, trials), near_best(theirs, trials)
        rates: _Rates = {}
        for _ in turns(rounds, within_s=_WITHIN_S):
            _measure(hotswap, ours, rates, tokens=_TOKENS)
            _measure(transformers, theirs, rates, tokens=_TOKENS)
        configuration = {
            "machine": describe_machine(),
            "hotswap": hotswap.configuration,
            "transformers": transformers.configuration,
            "rounds": len(rates[ours[0]]),
        }
    return Report(
        name="generation_engine",
        configuration=configuration,
        measures=[_compared(ours, theirs, rates)],
        samples={
            f"{kind} {_shown(way)}": samples
            for kind, found in (("trial", trials), ("rounds", rates))
            for way, samples in found.items()
        },
    )


def near_best(ways: Sequence[_Way], rates: _Rates) -> list[_Way]:
    """Those of ``ways`` whose best rate is at least four fifths of the best of all."""
    best = max(max(rates[way]) for way in ways)
    return [way for way in ways if max(rates[way]) >= _NEAR * best]


def _measure(side: SideProcess, ways: Sequence[_Way], rates: _Rates, *, tokens: int) -> None:
    for way in ways:
        arrivals = side.arrivals(**dict(way), batch=_BATCH, tokens=tokens)
        rates.setdefault(way, []).append(joint_rate(arrivals))


def _compared(ours: Sequence[_Way], theirs: Sequence[_Way], rates: _Rates) -> Measure:
    our = max(ours, key=lambda way: max(rates[way]))
    their = max(theirs, key=lambda way: max(rates[way]))
    pairs = [mine / other for mine, other in zip(rates[our], rates[their], strict=True)]
    best = max(rates[our]) / max(rates[their])
    return Measure(
        name="time a token, of transformers'",
        value=1 / best,
        unit="x",
        limit=1 / WANTED_SPEEDUP,
        note=f"{best:.2f} times as fast; hotswap {_rate(our, rates)}, "
        f"transformers {_rate(their, rates)}; rounds {min(pairs):.2f} to {max(pairs):.2f}, "
        f"median {quantile(pairs, 0.5):.2f}",
    )


def _rate(way: _Way, rates: _Rates) -> str:
    slowness = spread([1 / rate for rate in rates[way]])
    return f"{max(rates[way]):.1f} tokens/s ({_shown(way)}; spread {slowness:.0%})"


def _shown(way: _Way) -> str:
    return ", ".join(f"{name} {value}" for name, value in way)
