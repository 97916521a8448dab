"""Streams in an object store: publish, a first copy and a delta, against files and bare requests.

A store of our own on loopback, on tmpfs, whose objects a kernel sends: what is seen is what a
client costs, and no network. One process does all of it, in turns: 0.32 GB of bf16 published as a
full version, pulled into a new directory, and then one ``gap`` version of 1 %; the same with a
directory of files; and the same bytes by fsspec alone, with the same ranges and as many of them at
once. A client cannot do better than the requests and the work on what they bring, which is both of
these together. It decides nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from contrib.bench.generation_side import SideProcess
from contrib.bench.machine import THREADS, describe_machine, warm_page_cache
from contrib.bench.model import MIDDLE, checkpoint, checkpoint_bytes
from contrib.bench.paths import REPOSITORY
from contrib.bench.process import PeakMemory, exact_anonymous_bytes
from contrib.bench.results import Measure, Report, best, ratio_of_bests
from contrib.bench.store_side import MODULE

__all__ = ["run"]

_WAYS = ("publish", "full")
_SIDES = ("store", "files", "bare")
_DELTA = ("delta_store", "delta_files")
_TMPFS = Path("/dev/shm")
_MB = 1e6

_Samples = Mapping[str, list[float]]


def run(*, rounds: int) -> Report:
    """``rounds`` of each, after one that is not counted."""
    base = checkpoint(MIDDLE, "a")
    warm_page_cache(base)
    size = checkpoint_bytes(base)
    with tempfile.TemporaryDirectory(prefix="store-", dir=_TMPFS) as folder:
        for name in ("objects/bench", "side"):
            (Path(folder) / name).mkdir(parents=True)
        with (
            _store(Path(folder) / "objects") as endpoint,
            SideProcess(MODULE, endpoint, f"{folder}/side", str(base), str(THREADS)) as side,
        ):
            configuration = side.configuration
            peaks = _warm_up(side)
            _most(endpoint)
            samples = _rounds(side, rounds)
            most = _most(endpoint)
    return Report(
        name="store",
        configuration={
            "machine": describe_machine(),
            "checkpoint_bytes": size,
            "rounds": rounds,
            **configuration,
        },
        measures=[
            *_measures(samples, size),
            *(Measure(name=f"{way}: memory", value=peak / _MB, unit="MB") for way, peak in peaks),
            Measure(name="reads under way at once, at most", value=float(most)),
        ],
        samples=samples,
    )


def _warm_up(side: SideProcess) -> Sequence[tuple[str, int]]:
    """Each way once; the most memory that ours take above what the process had."""
    peaks = list[tuple[str, int]]()
    for way in (*(f"{way}_{side_}" for way in _WAYS for side_ in _SIDES), *_DELTA):
        before = exact_anonymous_bytes(side.pid)
        with PeakMemory(side.pid) as memory:
            side.ask(way=way)
        if way.endswith("_store"):
            peaks.append((way.removesuffix("_store"), memory.peak_bytes - before))
    return peaks


def _rounds(side: SideProcess, rounds: int) -> _Samples:
    samples: dict[str, list[float]] = {}
    for turn in range(rounds):
        for way in _WAYS:
            for number in range(len(_SIDES)):
                name = f"{way}_{_SIDES[(turn + number) % len(_SIDES)]}"
                samples.setdefault(name, []).append(side.ask(way=name)["seconds"])
        for name in _DELTA:
            samples.setdefault(name, []).append(side.ask(way=name)["seconds"])
    return samples


def _measures(samples: _Samples, size: int) -> Iterator[Measure]:
    for way in _WAYS:
        for side in _SIDES:
            seconds = min(samples[f"{way}_{side}"])
            yield Measure(
                name=f"{way}: {side}",
                value=seconds,
                unit="s",
                note=f"best of {len(samples[f'{way}_{side}'])}, {size / seconds / _MB:.0f} MB/s",
            )
        both = list(map(sum, zip(samples[f"{way}_files"], samples[f"{way}_bare"], strict=True)))
        ours, bare = samples[f"{way}_store"], samples[f"{way}_bare"]
        yield ratio_of_bests(f"{way}: store / bare", ours, bare)
        yield ratio_of_bests(f"{way}: store / (files + bare)", ours, both)
    for name in _DELTA:
        yield best(name.replace("_", ": "), [1000 * one for one in samples[name]])


@contextmanager
def _store(folder: Path) -> Iterator[str]:
    """Where the store is."""
    with subprocess.Popen(
        [sys.executable, "-m", "contrib.bench.store_server", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        text=True,
    ) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.communicate()  # closes its stdin, which ends it


def _most(endpoint: str) -> int:
    with urlopen(f"{endpoint}/-/most") as reply:
        return int(json.load(reply)["most"])
