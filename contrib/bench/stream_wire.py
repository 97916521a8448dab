"""``gap`` against ``xor``: bytes on the wire, seconds to publish, seconds to pull.

1 GB of bf16; a share of the elements is a step further. A thread for each core, a warm page
cache, everything on tmpfs. ``plain`` is numpy alone, ``native`` compiled by numba.

* Wire: the blobs of one version, at three shares, and of real steps (``optimiser_steps``).
* Publish: comparing, encoding and hashing, against what publishers of ``xor`` do today: XOR, count,
  zstd level 1, xxh3-128 of the new tensor. Both share the tensors out to threads.
* Pull: one version into a local checkpoint, in place and with two copies, against the plain reader
  of ``xor`` that a kill cannot tear either, by a second copy (``pull``); the one that it can tear
  is shown beside it. And ten versions at once, in both ways.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import xxhash
import zstandard

from contrib.bench import pull_side, stream_wire_side
from contrib.bench.generation_side import SideProcess
from contrib.bench.machine import THREADS, describe_machine, warm_page_cache
from contrib.bench.model import LARGE, checkpoint, checkpoint_bytes
from contrib.bench.optimiser_steps import RATES, changed_share, steps_of
from contrib.bench.pull_stream import Tensors, tensors_of
from contrib.bench.results import Measure, Report, spread
from contrib.bench.stream_wire_stream import published, stepped
from hotswap.stream import directory_of
from hotswap.stream.checksums import OWN_CHECKSUM, new_hasher
from hotswap.stream.encodings import Bytes
from hotswap.stream.gap import encode_gap
from hotswap.stream.gap_native import has_native
from hotswap.stream.native_hash import native_hasher

__all__ = ["run"]

SHARES = (0.001, 0.01, 0.03)
_SHARE = 0.01
_WIRE_LIMIT = {0.001: 1.0, 0.01: 0.55, 0.03: 1.0}
_SLACK_BYTES = 64
_BEHIND = 10
_MOST_ROUNDS = 5
_TMPFS = Path("/dev/shm")
_WIDTH = 2
_KINDS = {"": "hotswap", ".copies": "two_copies"}
_CALLED = {"hotswap": "written in place", "two_copies": "with two copies"}

_Samples = dict[str, list[float]]
_Encode = Callable[[Bytes, Bytes], int]


def run(*, rounds: int) -> Report:
    """``rounds`` of each measurement, at most 5, after one that is not counted."""
    rounds = min(rounds, _MOST_ROUNDS)
    base = checkpoint(LARGE, "a")
    wire, publish = _in_memory(base, rounds)
    pulls = _pulls(base, rounds)
    samples = {**publish, **pulls}
    return Report(
        name="stream_wire",
        configuration={
            "machine": describe_machine(),
            "threads": THREADS,
            "checkpoint_bytes": checkpoint_bytes(base),
            "changed": "one bf16 step up or down",
            "native": has_native(),
            "rounds": rounds,
        },
        measures=[*wire, *_publish_measures(publish), *_pull_measures(pulls)],
        samples=samples,
    )


def _in_memory(base: Path, rounds: int) -> tuple[list[Measure], _Samples]:
    old = tensors_of(base)
    wire = list[Measure]()
    samples: _Samples = {}
    for share in SHARES:
        new = stepped(old, share, seed=1)
        wire.append(_wire_measure(share, _sizes(old, new), len(old)))
        if share == _SHARE:
            samples = _timed(old, new, rounds)
    return [*wire, *map(_wire_of_steps, RATES)], samples


def _sizes(old: Tensors, new: Tensors) -> dict[str, int]:
    return {name: sum(_over(old, new, work)[0]) for name, work in _SIZES.items()}


def _wire_measure(share: float, sizes: Mapping[str, int], tensors: int) -> Measure:
    slack = 0 if share == _SHARE else _SLACK_BYTES * tensors
    return _wire(f"{100 * share:g} % changed", sizes, slack, _WIRE_LIMIT[share])


def _wire_of_steps(rate: float) -> Measure:
    old, new = steps_of(rate)
    what = f"AdamW at {rate:g} ({100 * changed_share(old, new):.2f} % changed)"
    return _wire(what, _sizes(old, new), _SLACK_BYTES * len(old), 1.0)


def _wire(what: str, sizes: Mapping[str, int], slack_bytes: int, limit: float) -> Measure:
    return Measure(
        name=f"wire: gap / xor, {what}",
        value=(sizes["gap"] - slack_bytes) / sizes["xor"],
        unit="x",
        limit=limit,
        note=f"gap {sizes['gap'] / 1e6:.2f} MB, xor {sizes['xor'] / 1e6:.2f} MB",
    )


def _timed(old: Tensors, new: Tensors, rounds: int) -> _Samples:
    ways = {"publish.xor": _today, "publish.plain": _plain}
    if has_native():
        ways["publish.native"] = _native
    samples: _Samples = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, work in ways.items():
            seconds = _over(old, new, work)[1]
            if turn:
                samples[name].append(seconds)
    return samples


def _over(old: Tensors, new: Tensors, work: _Encode) -> tuple[list[int], float]:
    """``work`` on every tensor, the largest first; what it returns, and seconds."""
    names = sorted(old, key=lambda name: len(old[name]), reverse=True)
    begin = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda name: work(old[name], new[name]), names))
    return found, time.perf_counter() - begin


def _today(old: Bytes, new: Bytes) -> int:
    change = np.bitwise_xor(old, new)
    changed = int(np.count_nonzero(change))
    frame = zstandard.ZstdCompressor(level=1).compress(change.data) if changed else b""
    xxhash.xxh3_128(new.data).hexdigest()
    return len(frame)


def _gap(old: Bytes, new: Bytes, *, native: bool) -> int:
    hasher = native_hasher(OWN_CHECKSUM) if native else new_hasher(OWN_CHECKSUM)
    blob = encode_gap(old, new, _WIDTH, hasher=hasher, native=native)
    hasher.hexdigest()
    return len(blob or b"")


def _plain(old: Bytes, new: Bytes) -> int:
    return _gap(old, new, native=False)


def _native(old: Bytes, new: Bytes) -> int:
    return _gap(old, new, native=True)


_SIZES: Mapping[str, _Encode] = {"gap": _plain, "xor": _today}


def _pulls(base: Path, rounds: int) -> _Samples:
    """Each side has a checkpoint and a process of its own; they take turns at who is first."""
    xor, gap = published(base, _SHARE, xor=rounds + 1, gap=max(rounds, _BEHIND) + 1)
    sides = {"pull.in_place": (pull_side.MODULE, "plain", xor)}
    sides |= {"pull.xor": (pull_side.MODULE, "second_copy", xor)}
    modules = {"plain": stream_wire_side.MODULE}
    if has_native():
        modules["native"] = pull_side.MODULE
    for way, module in modules.items():
        for name, kind in _KINDS.items():
            sides[f"pull.{way}{name}"] = module, kind, gap
    samples: _Samples = {name: [] for name in sides}
    with (
        tempfile.TemporaryDirectory(prefix="stream-wire-", dir=_TMPFS) as folder,
        ExitStack() as on,
    ):
        running = {
            name: on.enter_context(
                SideProcess(module, kind, f"{folder}/{name}", str(source), str(base), str(THREADS))
            )
            for name, (module, kind, source) in sides.items()
        }
        warm_page_cache(base, *(directory_of(xor, v) for v in range(1, rounds + 2)))
        for version in range(1, rounds + 2):
            order = list(running) if version % 2 else list(reversed(running))
            for name in order:
                seconds = running[name].ask(version=version)["seconds"]
                if version > 1:
                    samples[name].append(seconds)
    for name, kind in _KINDS.items():
        samples[f"pull.behind{name}"] = _behind(base, gap, rounds, kind)
    return samples


def _behind(base: Path, gap: Path, rounds: int, kind: str) -> list[float]:
    """Ten versions at once, by what is installed; each time after others that are not counted."""
    samples = list[float]()
    with (
        tempfile.TemporaryDirectory(prefix="stream-wire-", dir=_TMPFS) as folder,
        SideProcess(
            pull_side.MODULE, kind, f"{folder}/l", str(gap), str(base), str(THREADS)
        ) as one,
    ):
        for _ in range(rounds):
            # The first one loads what numba compiled and makes a second copy; seeded again after.
            one.ask(version=0)
            one.ask(version=1)
            samples.append(one.ask(version=1 + _BEHIND)["seconds"])
    return samples


def _publish_measures(samples: _Samples) -> list[Measure]:
    today = min(samples["publish.xor"])
    found = [_seconds("publish: xor as today", samples["publish.xor"])]
    for way, limit in (("plain", 1.0), ("native", 0.5)):
        values = samples.get(f"publish.{way}")
        if values:
            found += [
                _seconds(f"publish: gap {way}", values),
                _ratio(f"publish: gap {way} / xor", min(values), today, limit),
            ]
    return found


def _pull_measures(samples: _Samples) -> list[Measure]:
    reader = min(samples["pull.xor"])
    torn = min(samples["pull.in_place"])
    found = [
        _seconds("pull: plain reader of xor, in place", samples["pull.in_place"]),
        _seconds("pull: plain reader of xor, second copy", samples["pull.xor"]),
    ]
    one = dict.fromkeys(_KINDS, reader)
    for way in ("plain", "native"):
        for name, kind in _KINDS.items():
            values = samples.get(f"pull.{way}{name}")
            if values:
                one[name] = min(values)
                called = f"pull: gap {way}, {_CALLED[kind]}"
                found += [
                    _seconds(called, values),
                    _ratio(f"{called} / plain reader, in place", one[name], torn),
                    _ratio(f"{called} / plain reader, second copy", one[name], reader, 1 / 2.5),
                ]
    for name, kind in _KINDS.items():
        called = f"pull: {_BEHIND} versions, {_CALLED[kind]}"
        behind = min(samples[f"pull.behind{name}"])
        found += [
            _seconds(called, samples[f"pull.behind{name}"]),
            _ratio(f"{called} / one", behind, one[name], 3.5),
        ]
    return found


def _seconds(name: str, values: list[float]) -> Measure:
    note = f"best of {len(values)}, spread {spread(values):.0%}"
    return Measure(name=name, value=min(values), unit="s", note=note)


def _ratio(name: str, ours: float, theirs: float, limit: float | None = None) -> Measure:
    return Measure(
        name=name,
        value=ours / theirs,
        unit="x",
        limit=limit,
        note=f"{theirs / ours:.2f} x as fast",
    )
