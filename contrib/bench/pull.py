"""How long a pull of one xor version takes, against plain readers of the same version.

1 GB of bf16 of which 1 % changes, on the disk of ``.bench/`` and on tmpfs. Each side has a
checkpoint and a process of its own; all bring theirs to the same versions, one after the other,
and take turns at who is first. All end when the bytes and then a marker are durable.

Ours never leaves anything torn, and does that in two ways: in place, by a journal, which needs no
room (the default), and with two copies, as ``--local-checkpoint two-copies`` has it. The plain
reader that both are compared with promises the same, by a second copy (``plain_second_copy``). The
one that applies in place and is torn by a kill (``plain_reader``) is shown beside it. The best of
each is taken; what the rounds' own ratios were is in the note.

The memory is that of the first pull of each of our processes above what it held before, sampled
every 5 ms; that pull is not timed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from contrib.bench.generation_side import SideProcess
from contrib.bench.machine import THREADS, describe_machine, warm_page_cache
from contrib.bench.model import LARGE, checkpoint, checkpoint_bytes
from contrib.bench.paths import BENCH_DIR
from contrib.bench.process import PeakMemory, exact_anonymous_bytes
from contrib.bench.pull_side import MODULE
from contrib.bench.pull_stream import SHARE, published, wire_bytes
from contrib.bench.results import Measure, Report, spread
from hotswap.stream.stored import StoredTensors

__all__ = ["run"]

OURS = {"hotswap": "hotswap in place", "two_copies": "hotswap with two copies"}
SIDES = (*OURS, "plain", "second_copy")
WANTED_SPEEDUP = 1.2
ROOM_BYTES = 200 * 10**6
_TMPFS = Path("/dev/shm")
_MB = 1e6


@dataclass(slots=True)
class _Rounds:
    """Seconds of every round by side; of ours phases too, and the most memory of the first pull."""

    seconds: Mapping[str, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})
    phases: Mapping[str, list[Mapping[str, float]]] = field(
        default_factory=lambda: {side: [] for side in OURS}
    )
    peak_bytes: dict[str, int] = field(default_factory=dict)
    configuration: Mapping[str, object] = field(default_factory=dict)

    def ratios(self, ours: str, plain: str) -> list[float]:
        """Of each round, ``ours`` through ``plain``."""
        both = zip(self.seconds[ours], self.seconds[plain], strict=True)
        return [one / other for one, other in both]


def run(*, rounds: int) -> Report:
    """``rounds`` versions on each kind of file system, after one that is not counted."""
    base = checkpoint(LARGE, "a")
    source = published(base, versions=rounds + 1)
    warm_page_cache(base)
    seen = {
        kind: _measure(base, source, root, rounds)
        for kind, root in (("disk", BENCH_DIR), ("tmpfs", _TMPFS))
    }
    allowed = _allowed_bytes(base)
    return Report(
        name="pull",
        configuration={
            "machine": describe_machine(),
            "checkpoint_bytes": checkpoint_bytes(base),
            "changed": SHARE,
            "wire_bytes": wire_bytes(source, 1),
            "rounds": rounds,
            **{kind: one.configuration for kind, one in seen.items()},
        },
        measures=[m for kind, one in seen.items() for m in _measures(kind, one, allowed)],
        samples={
            f"{kind}.{side}_s": values
            for kind, one in seen.items()
            for side, values in one.seconds.items()
        },
    )


def _measure(base: Path, source: Path, root: Path, rounds: int) -> _Rounds:
    figures = _Rounds()
    with tempfile.TemporaryDirectory(prefix="pull-", dir=root) as folder, ExitStack() as on:
        rest = str(source), str(base), str(THREADS)
        sides = {
            side: on.enter_context(SideProcess(MODULE, side, f"{folder}/{side}", *rest))
            for side in SIDES
        }
        figures.configuration = {**sides["hotswap"].configuration, "file_system": _kind(root)}
        _warm_up(sides, figures)
        for version in range(2, rounds + 2):
            for turn in range(len(SIDES)):
                os.sync()  # what one side wrote is not the other's to wait for
                name = SIDES[(version + turn) % len(SIDES)]
                reply = sides[name].ask(version=version)
                figures.seconds[name].append(reply["seconds"])
                if name in OURS:
                    figures.phases[name].append(reply["phases"])
    return figures


def _warm_up(sides: Mapping[str, SideProcess], figures: _Rounds) -> None:
    """Version 1, which is not timed, as the look at the memory takes time of its own."""
    for name, side in sides.items():
        if name not in OURS:
            side.ask(version=1)
            continue
        before = exact_anonymous_bytes(side.pid)
        with PeakMemory(side.pid) as memory:
            side.ask(version=1)
        figures.peak_bytes[name] = memory.peak_bytes - before


def _kind(root: Path) -> str:
    """The file system below ``root``, as the kernel calls it."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [(len(at), kind) for at, kind in mounts if root.resolve().is_relative_to(at)]
    return max(inside)[1]


def _allowed_bytes(base: Path) -> int:
    """Two of the largest tensors for each thread, and 200 MB."""
    with StoredTensors.at(base) as stored:
        return 2 * THREADS * max(stored.lengths.values()) + ROOM_BYTES


def _measures(kind: str, seen: _Rounds, allowed: int) -> Sequence[Measure]:
    found = [
        _seconds(f"{kind}: plain reader, in place", seen.seconds["plain"]),
        _seconds(f"{kind}: plain reader, second copy", seen.seconds["second_copy"]),
    ]
    for ours, called in OURS.items():
        found += _measures_of(ours, f"{kind}: {called}", seen, allowed)
    return found


def _measures_of(ours: str, called: str, seen: _Rounds, allowed: int) -> Sequence[Measure]:
    seconds = seen.seconds[ours]
    fastest = seen.phases[ours][seconds.index(min(seconds))]
    spent = ", ".join(f"{phase} {1000 * took:.0f}" for phase, took in fastest.items())
    return [
        _seconds(called, seconds, f"; the best, in ms: {spent}"),
        _ratio(f"{called} / plain, in place", seen, ours, "plain"),
        _ratio(f"{called} / plain, second copy", seen, ours, "second_copy", 1 / WANTED_SPEEDUP),
        Measure(
            name=f"{called}, memory of a pull",
            value=seen.peak_bytes[ours] / _MB,
            unit="MB",
            limit=allowed / _MB,
            note="two tensors for each thread and 200 MB; decoded delta and journal not counted in",
        ),
    ]


def _ratio(name: str, seen: _Rounds, side: str, other: str, limit: float | None = None) -> Measure:
    ours, plain = min(seen.seconds[side]), min(seen.seconds[other])
    low, high = min(seen.ratios(side, other)), max(seen.ratios(side, other))
    note = f"{plain / ours:.2f} x as fast; rounds {1 / high:.2f} to {1 / low:.2f}"
    return Measure(name=name, value=ours / plain, unit="x", limit=limit, note=note)


def _seconds(name: str, values: Sequence[float], more: str = "") -> Measure:
    note = f"best of {len(values)}, spread {spread(values):.0%}{more}"
    return Measure(name=name, value=min(values), unit="s", note=note)
