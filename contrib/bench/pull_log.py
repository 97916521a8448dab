"""How long a pull of one version to a log takes, against the plain reader of the same change.

1 GB of bf16 of which 1 % of the elements is a step further, on the disk of ``.bench/`` and on
tmpfs; a thread for each core, a warm page cache. Ours pulls ``gap`` versions to a log
(``--local-checkpoint log``), by numpy alone (``plain``) and compiled (``native``); the plain reader
takes the ``xor`` versions of the same changes, into a second copy (``plain_second_copy``), so that
a kill tears neither. Each side has a checkpoint and a process of its own, and all end when
what they wrote is durable.

A log costs more the longer it is, as the versions in it are applied to what is verified: it is
measured from the second version to the last that fits, and the mean of all of them has to meet
the target. The best of the plain reader is taken. What is written is counted by the pull, and
compared with the bytes of the published version.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from contrib.bench import pull_log_side, pull_side
from contrib.bench.generation_side import SideProcess
from contrib.bench.machine import THREADS, describe_machine, warm_page_cache
from contrib.bench.model import LARGE, checkpoint, checkpoint_bytes
from contrib.bench.paths import BENCH_DIR
from contrib.bench.results import Measure, Report, spread
from contrib.bench.stream_wire_stream import published
from hotswap.stream import directory_of
from hotswap.stream.append import LogLimits
from hotswap.stream.gap_native import has_native

__all__ = ["run"]

WANTED_SPEEDUP = 4.0
MOST_WRITTEN = 1.5
_SHARE = 0.01
_MOST_ROUNDS = 5
_PUBLISHED = 11  # as many as stream_wire publishes
_LONGEST = LogLimits().versions
_TMPFS = Path("/dev/shm")


@dataclass(slots=True)
class _Seen:
    """Seconds of each side, and of each of our pulls what it did in which milliseconds."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    phases: dict[str, list[str]] = field(default_factory=dict)
    written: list[float] = field(default_factory=list)


def run(*, rounds: int) -> Report:
    """``rounds`` versions of the plain reader, at most 5, and a whole log; each after one more."""
    rounds = min(rounds, _MOST_ROUNDS)
    base = checkpoint(LARGE, "a")
    sources = published(base, _SHARE, xor=rounds + 1, gap=_PUBLISHED)
    seen = {
        kind: _measure(base, *sources, root, rounds)
        for kind, root in (("disk", BENCH_DIR), ("tmpfs", _TMPFS))
    }
    return Report(
        name="pull_log",
        configuration={
            "machine": describe_machine(),
            "threads": THREADS,
            "checkpoint_bytes": checkpoint_bytes(base),
            "changed": _SHARE,
            "native": has_native(),
            "versions": _LONGEST,
            "rounds": rounds,
        },
        measures=[measure for kind, one in seen.items() for measure in _measures(kind, one)],
        samples={
            f"{kind}.{side}_s": values
            for kind, one in seen.items()
            for side, values in one.seconds.items()
        },
    )


def _measure(base: Path, xor: Path, gap: Path, root: Path, rounds: int) -> _Seen:
    sides = {"second_copy": (pull_side.MODULE, xor), "plain": (pull_log_side.MODULE, gap)}
    if has_native():
        sides |= {"native": (pull_log_side.MODULE, gap)}
    seen = _Seen(seconds={side: [] for side in sides}, phases={side: [] for side in sides})
    with tempfile.TemporaryDirectory(prefix="pull-log-", dir=root) as folder, ExitStack() as on:
        running = {
            side: on.enter_context(
                SideProcess(module, side, f"{folder}/{side}", str(source), str(base), str(THREADS))
            )
            for side, (module, source) in sides.items()
        }
        warm_page_cache(base, *(directory_of(xor, n) for n in range(1, rounds + 2)))
        for version in range(1, _LONGEST + 1):
            warm_page_cache(directory_of(gap, version))
            order = list(running) if version % 2 else list(reversed(running))
            for side in order:
                if side != "second_copy" or version <= rounds + 1:
                    os.sync()  # what one side wrote is not the other's to wait for
                    _note(seen, side, version, running[side].ask(version=version), gap)
    return seen


def _note(seen: _Seen, side: str, version: int, reply: Mapping[str, object], gap: Path) -> None:
    """The first one is not counted: it loads what numba compiled."""
    if version == 1:
        return
    seen.seconds[side].append(float(str(reply["seconds"])))
    if side == "second_copy":
        return
    if reply["mode"] != "log":
        raise RuntimeError(f"version {version} was pulled as {reply['mode']}, wanted log")
    delta = sum(path.stat().st_size for path in directory_of(gap, version).iterdir())
    seen.written.append(int(str(reply["written_bytes"])) / delta)
    phases = reply["phases"]
    assert isinstance(phases, dict)
    spent = (f"{phase} {1000 * seconds:.0f}" for phase, seconds in phases.items())
    seen.phases[side].append(", ".join(spent))


def _measures(kind: str, seen: _Seen) -> Sequence[Measure]:
    plain = min(seen.seconds["second_copy"])
    found = [
        Measure(
            name=f"{kind}: plain reader of xor, second copy",
            value=plain,
            unit="s",
            note=f"best of {len(seen.seconds['second_copy'])}, "
            f"spread {spread(seen.seconds['second_copy']):.0%}",
        )
    ]
    for side in ("plain", "native"):
        if seen.seconds.get(side):
            found += _log_measures(f"{kind}: gap {side} to a log", seen, side, plain)
    written = max(seen.written)
    found.append(
        Measure(name=f"{kind}: bytes written / delta", value=written, unit="x", limit=MOST_WRITTEN)
    )
    return found


def _log_measures(name: str, seen: _Seen, side: str, plain: float) -> Sequence[Measure]:
    values, spent = seen.seconds[side], seen.phases[side]
    average = mean(values)
    return [
        Measure(
            name=name,
            value=average,
            unit="s",
            note=f"mean of versions 2 to {len(values) + 1}, {min(values):.3f} to "
            f"{max(values):.3f}; the last, in ms: {spent[-1]}",
        ),
        Measure(
            name=f"{name} / plain reader",
            value=average / plain,
            unit="x",
            limit=1 / WANTED_SPEEDUP,
            note=f"{plain / average:.2f} x as fast",
        ),
    ]
