"""From "published" to "served": a version of 1 GB of bf16 in which 1 % moved by a step.

Once as ``xor``, after which all is loaded, and once as ``gap``, after which what changed is
committed sparsely. Each way is a process with a model, a local checkpoint on tmpfs and two
threads; they take turns at the same versions. Generation stands still for the last phase alone.

The picture in the documentation is drawn from the best round of each, and the figures are kept
beside it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from contrib.bench.bars import Bar, picture
from contrib.bench.generation_side import SideProcess
from contrib.bench.machine import THREADS, describe_machine, warm_page_cache
from contrib.bench.model import LARGE, checkpoint, checkpoint_bytes
from contrib.bench.paths import REPOSITORY
from contrib.bench.results import Measure, Report, spread
from contrib.bench.sparse_side import MODULE
from contrib.bench.stream_wire_stream import published
from hotswap.native import has_native
from hotswap.stream import directory_of

__all__ = ["FIGURES", "PICTURE", "draw", "run"]

FIGURES = REPOSITORY / "docs" / "explanation" / "published-to-served.json"
PICTURE = FIGURES.with_suffix(".svg")

_SHARE = 0.01
_BEHIND = 10
_MOST_ROUNDS = 5
_TMPFS = Path("/dev/shm")
_PHASES = {"pulled_ms": "pull", "staged_ms": "stage", "paused_ms": "blackout"}
_COLOURS = {"pull": "#6f9bd1", "stage": "#a9c7a0", "blackout": "#c8453b"}
_WAYS = {"full": "xor, full reload", "sparse": "gap, sparse commit"}

_Round = Mapping[str, float]


def run(*, rounds: int) -> Report:
    """``rounds`` of both ways, at most 5, after one that is not counted; draws the picture."""
    rounds = min(rounds, _MOST_ROUNDS)
    base = checkpoint(LARGE, "a")
    seen = _measured(base, rounds)
    figures = {
        "machine": describe_machine(),
        "threads": THREADS,
        "native": has_native(),
        "checkpoint_bytes": checkpoint_bytes(base),
        "changed": f"{_SHARE:.0%} of the elements, one bf16 step each",
        "rounds": rounds,
        "best": {way: min(found, key=_total_ms) for way, found in seen.items()},
    }
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    PICTURE.write_text(draw(figures))
    return Report(
        name="served",
        configuration={key: value for key, value in figures.items() if key != "best"},
        measures=[one for way, found in seen.items() for one in _measures(way, found)],
        samples={
            f"{way}.{phase}": [one[phase] for one in found]
            for way, found in seen.items()
            for phase in _PHASES
        },
    )


def draw(figures: Mapping[str, Any]) -> str:
    """The picture of ``figures``, as they lie beside it."""
    bars = [
        Bar(
            label=_WAYS[way],
            note=f"blackout {best['paused_ms']:.0f} ms",
            phases={phase: best[key] / 1000 for key, phase in _PHASES.items()},
        )
        for way, best in figures["best"].items()
    ]
    size = f"{figures['checkpoint_bytes'] / 1e9:.2f} GB"
    return picture(f"From published to served: {size}, 1 % changed", bars, colours=_COLOURS)


def _measured(base: Path, rounds: int) -> dict[str, list[_Round]]:
    xor, gap = published(base, _SHARE, xor=rounds + 1, gap=max(rounds, _BEHIND) + 1)
    warm_page_cache(base, *(directory_of(xor, v) for v in range(1, rounds + 2)))
    sources = {"full": xor, "sparse": gap}
    seen: dict[str, list[_Round]] = {way: [] for way in sources}
    with tempfile.TemporaryDirectory(prefix="served-", dir=_TMPFS) as folder, ExitStack() as on:
        sides = {
            way: on.enter_context(SideProcess(MODULE, "native", str(base), str(THREADS)))
            for way in sources
        }
        for version in range(rounds + 2):
            for way in sorted(sides, reverse=bool(version % 2)):
                place = {"source": str(sources[way]), "local": str(Path(folder) / way)}
                full = not version or way == "full"
                reply = sides[way].ask(**place, version=version, full=full)
                if reply["mode"] != ("full" if full else "sparse"):
                    raise RuntimeError(f"version {version} was committed {reply['mode']}")
                if version > 1:
                    seen[way].append({phase: reply[phase] for phase in _PHASES})
    return seen


def _measures(way: str, seen: Sequence[_Round]) -> list[Measure]:
    totals = [_total_ms(one) for one in seen]
    best = min(seen, key=_total_ms)
    phases = ", ".join(f"{name} {best[key]:.0f}" for key, name in _PHASES.items())
    note = f"best of {len(seen)}, spread {spread(totals):.0%}: {phases} ms"
    return [
        Measure(name=f"{_WAYS[way]}: to served", value=min(totals), unit="ms", note=note),
        Measure(
            name=f"{_WAYS[way]}: blackout", value=min(one["paused_ms"] for one in seen), unit="ms"
        ),
    ]


def _total_ms(one: _Round) -> float:
    return sum(one[phase] for phase in _PHASES)
