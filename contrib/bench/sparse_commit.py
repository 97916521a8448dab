"""How long generation stands still for a sparse commit, against a staged dense one.

The same process, model and directory: 1 GB of bf16 of which a share of the elements moves by
one step each version. A version is pulled and committed sparsely, then the next one is pulled
and all of it is loaded, and so on, so that both sides alternate. The best of each is compared. Once
with the compiled loop of ``hotswap[native]``, once as where numba is not installed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from contrib.bench.generation_side import SideProcess
from contrib.bench.machine import THREADS, describe_machine, warm_page_cache
from contrib.bench.model import LARGE, checkpoint, checkpoint_bytes
from contrib.bench.paths import BENCH_DIR
from contrib.bench.pull_stream import tensors_of
from contrib.bench.results import Measure, Report, spread
from contrib.bench.sparse_side import MODULE
from contrib.bench.stream_wire_stream import stepped
from hotswap.stream import publish_delta

__all__ = ["LIMITS", "published", "run"]

LIMITS: Mapping[tuple[float, str], float] = {
    (0.01, "native"): 0.5,
    (0.01, "plain"): 0.8,
    (0.001, "native"): 0.15,
    (0.001, "plain"): 0.15,
}
"""The share that changes and the loop -> sparse / dense, at most."""

_TMPFS = Path("/dev/shm")


@dataclass(slots=True)
class _Rounds:
    """Milliseconds of every round; ``elements`` that the last sparse commit moved."""

    sparse_ms: list[float] = field(default_factory=list)
    dense_ms: list[float] = field(default_factory=list)
    sparse_staged_ms: list[float] = field(default_factory=list)
    dense_staged_ms: list[float] = field(default_factory=list)
    elements: int = 0


def run(*, rounds: int) -> Report:
    """``rounds`` of both kinds for each share and each loop, after one that is not counted."""
    base = checkpoint(LARGE, "a")
    shares = sorted({share for share, _ in LIMITS}, reverse=True)
    sources = {share: published(base, share, versions=2 * rounds + 2) for share in shares}
    warm_page_cache(base)
    seen: dict[tuple[float, str], _Rounds] = {}
    sides: dict[str, object] = {}
    for kind in ("native", "plain"):
        with (
            tempfile.TemporaryDirectory(prefix="sparse-", dir=_TMPFS) as folder,
            SideProcess(MODULE, kind, str(base), str(THREADS)) as side,
        ):
            sides[kind] = side.configuration
            for share in shares:
                seen[share, kind] = _measure(side, sources[share], Path(folder) / "local", rounds)
                shutil.rmtree(Path(folder) / "local")
    return Report(
        name="sparse_commit",
        configuration={
            "machine": describe_machine(),
            "checkpoint_bytes": checkpoint_bytes(base),
            "rounds": rounds,
            **sides,
        },
        measures=[one for case in seen.items() for one in _measures(*case)],
        samples={
            f"{share:g}.{kind}.{name}": getattr(one, name)
            for (share, kind), one in seen.items()
            for name in ("sparse_ms", "dense_ms", "sparse_staged_ms", "dense_staged_ms")
        },
    )


def published(base: Path, share: float, *, versions: int) -> Path:
    """A source of ``versions`` gap versions on ``base``; made when absent."""
    source = BENCH_DIR / f"{base.name}-sparse-{share:g}-{versions}"
    if not source.is_dir():
        unfinished = source.with_name(f"{source.name}.{os.getpid()}.tmp")
        try:
            tensors = tensors_of(base)
            for version in range(1, versions + 1):
                after = stepped(tensors, share, seed=version)
                changes = [(name, tensors[name], after[name]) for name in tensors]
                publish_delta(unfinished, version, [changes], encoding="gap")
                tensors = after
            unfinished.rename(source)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return source


def _measure(side: SideProcess, source: Path, local: Path, rounds: int) -> _Rounds:
    figures = _Rounds()
    places = {"source": str(source), "local": str(local)}
    side.ask(**places, version=0, full=True)
    for version in range(1, 2 * rounds + 3):
        full = version % 2 == 0
        reply = side.ask(**places, version=version, full=full)
        if reply["mode"] != ("full" if full else "sparse"):
            raise RuntimeError(f"version {version} was committed {reply['mode']}")
        if version <= 2:
            continue
        if full:
            figures.dense_ms.append(reply["paused_ms"])
            figures.dense_staged_ms.append(reply["staged_ms"])
        else:
            figures.sparse_ms.append(reply["paused_ms"])
            figures.sparse_staged_ms.append(reply["staged_ms"])
            figures.elements = reply["elements"]
    return figures


def _measures(case: tuple[float, str], seen: _Rounds) -> Sequence[Measure]:
    share, kind = case
    name = f"{share:.1%} {kind}"
    staged = f"; staged {min(seen.sparse_staged_ms):.0f} ms"
    dense_staged = f"; staged {min(seen.dense_staged_ms):.0f} ms"
    return [
        _paused(f"{name}: dense", seen.dense_ms, dense_staged),
        _paused(f"{name}: sparse", seen.sparse_ms, f", {seen.elements} elements{staged}"),
        Measure(
            name=f"{name}: sparse / dense",
            value=min(seen.sparse_ms) / min(seen.dense_ms),
            unit="x",
            limit=LIMITS[case],
        ),
    ]


def _paused(name: str, values: Sequence[float], more: str) -> Measure:
    note = f"best of {len(values)}, spread {spread(values):.0%}{more}"
    return Measure(name=name, value=min(values), unit="ms", note=note)
