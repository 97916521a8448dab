"""The plain reader with what a pull promises: whenever it is killed, nothing is lost.

A pull leaves a whole version behind at every instant: it verifies before it writes, and a
journal finishes what a kill interrupts. ``plain_reader`` does not: between its first XOR and its
marker the file is of two versions, and a delta that turns out to be damaged has been
applied already. What is left then cannot be repaired (XOR does not say which bytes it has been
through) and has to be made again from the base and every version since.

The usual remedy that needs no format of its own is a second copy: the same blocks of 2 MiB are
decompressed, XORed and hashed by the same pool, but the result goes into the mapping of the other
copy. Once all checksums are right that one is made durable, and then the marker names it. Killed at
any point, the marker names files that are whole and of its version; a damaged delta leaves
them as they are.

Both copies stay, and the next version overwrites the older one: its pages are there already, and
making new files each time needs as much room while it goes on.
"""

from __future__ import annotations

import json
import mmap
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import xxhash
import zstandard

from contrib.bench.plain_reader import (
    BLOCK_BYTES,
    Bytes,
    changes_of,
    make_durable,
    mark,
    spans_of,
    tensors_begin,
)

__all__ = ["copy_base", "copy_version", "held"]

_PREFIX = "weights_"


def copy_base(local: Path, base: Path) -> None:
    """Make ``base`` version 0 of ``local``."""
    shutil.copytree(base, local / _name(0))
    mark(local, 0)


def held(local: Path) -> Path:
    """The directory of the version that the marker names."""
    state = json.loads((local / ".weight_sync" / "state.json").read_text())
    return local / _name(int(state["version"]))


def copy_version(local: Path, version_dir: Path, *, threads: int) -> None:
    """Bring ``local`` to the xor version in ``version_dir``, which builds on what it holds.

    Raises: RuntimeError naming a tensor whose checksum is wrong; ``local`` is then as it was.
    """
    index = json.loads((version_dir / "model.safetensors.index.json").read_text())
    version = int(index["metadata"]["version"])
    old, new = held(local), local / _name(version)
    for spare in local.glob(f"{_PREFIX}*"):
        if spare not in (old, new):
            spare.rename(new)
    shutil.copytree(old, new, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    blobs = {
        name: (blob, checksum)
        for file in sorted(set(index["weight_map"].values()))
        for name, blob, checksum in changes_of(version_dir / file)
    }
    for path in sorted(old.glob("*.safetensors")):
        _copy(path, new / path.name, blobs, threads)
    for path in (*new.iterdir(), new, local):
        make_durable(path)
    mark(local, version)


def _copy(old: Path, new: Path, blobs: Mapping[str, tuple[memoryview, str]], threads: int) -> None:
    before, after = _mapped(old, new)
    places = dict(spans_of(after))

    def copy_one(tensor: tuple[str, memoryview]) -> None:
        name, was = tensor
        if name not in blobs:
            places[name][:] = was
            return
        blob, checksum = blobs[name]
        is_now = np.frombuffer(places[name], np.uint8)
        if _xor(np.frombuffer(was, np.uint8), blob, is_now) != checksum:
            raise RuntimeError(f"tensor {name!r}: wrong checksum")

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(copy_one, spans_of(before)))


def _mapped(old: Path, new: Path) -> tuple[memoryview, memoryview]:
    """``old`` to read, and ``new``, then as long and with the same header, to write."""
    new.touch()
    with old.open("rb") as source, new.open("r+b") as target:
        target.truncate(old.stat().st_size)
        before = memoryview(mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ))
        after = memoryview(mmap.mmap(target.fileno(), 0))
    begin = tensors_begin(before)
    after[:begin] = before[:begin]
    return before, after


def _name(version: int) -> str:
    return f"{_PREFIX}{version:06d}"


def _xor(old: Bytes, blob: memoryview, new: Bytes) -> str:
    """XOR what ``blob`` decompresses to and ``old`` into ``new``; the checksum of the result."""
    hasher = xxhash.xxh3_128()
    reader = zstandard.ZstdDecompressor().stream_reader(blob)
    for at in range(0, len(old), BLOCK_BYTES):
        piece = new[at : at + BLOCK_BYTES]
        block = reader.read(len(piece))
        np.bitwise_xor(old[at : at + BLOCK_BYTES], np.frombuffer(block, np.uint8), out=piece)
        hasher.update(piece.data)
    return hasher.hexdigest()
