"""What ``hotswap.stream.pull`` is measured against: an xor version applied in the plain way.

Written from the description of the format alone, for the steady state: blobs are decompressed
2 MiB at a time, XORed into the mapped checkpoint, and the result is hashed while it is in the
processor's cache; a pool of threads takes the tensors. At the end the pages are made durable,
and then a marker says the version: what a pull also does. It does no more: what it has written is
torn if it is killed, or if a checksum turns out to be wrong.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import numpy as np
import xxhash
import zstandard
from numpy.typing import NDArray

__all__ = [
    "BLOCK_BYTES",
    "Bytes",
    "apply_version",
    "changes_of",
    "make_durable",
    "mark",
    "spans_of",
    "tensors_begin",
]

BLOCK_BYTES = 2 << 20

Bytes: TypeAlias = NDArray[np.uint8]


def apply_version(local: Path, version_dir: Path, *, threads: int) -> None:
    """Bring ``local`` to the xor version in ``version_dir``, which builds on what it holds.

    Raises: RuntimeError naming a tensor whose checksum is wrong; ``local`` is then torn.
    """
    index = json.loads((version_dir / "model.safetensors.index.json").read_text())
    files = [path.open("r+b") for path in sorted(local.glob("*.safetensors"))]
    try:
        maps = [mmap.mmap(file.fileno(), 0) for file in files]
        _apply(maps, version_dir, set(index["weight_map"].values()), threads)
        for mapped, file in zip(maps, files, strict=True):
            mapped.flush()
            os.fsync(file.fileno())
    finally:
        for file in files:
            file.close()
    mark(local, int(index["metadata"]["version"]))


def mark(local: Path, version: int) -> None:
    """Write down, durably, which version ``local`` holds."""
    home = local / ".weight_sync"
    home.mkdir(exist_ok=True)
    with (home / "state.json.tmp").open("w") as file:
        json.dump({"version": f"{version:06d}"}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(home / "state.json.tmp", home / "state.json")
    make_durable(home)


def make_durable(path: Path) -> None:
    """Return once a file's bytes, or a directory's names, survive a power cut."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _apply(maps: list[mmap.mmap], version_dir: Path, names: set[str], threads: int) -> None:
    tensors = {name: span for mapped in maps for name, span in spans_of(memoryview(mapped))}

    def apply_one(change: tuple[str, memoryview, str]) -> None:
        name, blob, checksum = change
        if _xor(np.frombuffer(tensors[name], np.uint8), blob) != checksum:
            raise RuntimeError(f"tensor {name!r}: wrong checksum")

    changes = [change for name in sorted(names) for change in changes_of(version_dir / name)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(apply_one, changes))


def _xor(tensor: Bytes, blob: memoryview) -> str:
    """XOR what ``blob`` decompresses to into ``tensor``; the checksum of the result."""
    hasher = xxhash.xxh3_128()
    reader = zstandard.ZstdDecompressor().stream_reader(blob)
    for at in range(0, len(tensor), BLOCK_BYTES):
        piece = tensor[at : at + BLOCK_BYTES]
        block = reader.read(len(piece))
        np.bitwise_xor(piece, np.frombuffer(block, np.uint8), out=piece)
        hasher.update(piece.data)
    return hasher.hexdigest()


def changes_of(path: Path) -> Iterator[tuple[str, memoryview, str]]:
    """Name, blob and checksum of each tensor of one file of deltas."""
    content = memoryview(path.read_bytes())
    checksums = _header(content)["__metadata__"]
    for name, blob in spans_of(content):
        yield name, blob, str(checksums[name])


def spans_of(content: memoryview) -> Iterator[tuple[str, memoryview]]:
    """Every tensor's bytes in a safetensors file."""
    start = tensors_begin(content)
    for name, entry in _header(content).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            yield name, content[start + begin : start + end]


def tensors_begin(content: memoryview) -> int:
    """Where the first tensor of a safetensors file is."""
    (length,) = struct.unpack("<Q", content[:8])
    return 8 + int(length)


def _header(content: memoryview) -> Mapping[str, Mapping[str, list[int]]]:
    text = bytes(content[8 : tensors_begin(content)])
    header: Mapping[str, Mapping[str, list[int]]] = json.loads(text)
    return header
