"""Writing ``aggregate/``: one delta from the base to a version, for who joins late.

Its directory is written over while it may be read. Rule: its index goes first and comes last,
and every file is stamped with the version, so that a reader who sees two of them skips it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from hotswap.stream.aggregate import DIRECTORY
from hotswap.stream.apply import bytes_of
from hotswap.stream.disk import Disk
from hotswap.stream.encodings import encode, hasher_for
from hotswap.stream.errors import StreamError
from hotswap.stream.layout import INDEX, spelled
from hotswap.stream.object_upkeep import ObjectAggregate
from hotswap.stream.objects import Objects
from hotswap.stream.parallel import run_all
from hotswap.stream.place import Place
from hotswap.stream.publisher_diff import Made
from hotswap.stream.publisher_files import (
    VERSION_STAMP,
    Blob,
    blob_file_parts,
    weight_map_of,
)
from hotswap.stream.publisher_index import delta_index
from hotswap.stream.publisher_ranks import Ranks, agreed
from hotswap.stream.publisher_snapshot import names_at
from hotswap.stream.publisher_tensors import HostTensor, width_of
from hotswap.stream.state import write_durably
from hotswap.stream.stored import StoredTensor, StoredTensors

__all__ = ["check_stamps", "write_aggregate"]


def check_stamps(source: Place, base_dir: Path) -> None:
    """Raises: StreamError for a base that no aggregate can be about."""
    if VERSION_STAMP in names_at(source, 0, base_dir=base_dir):
        raise StreamError(
            f"{base_dir}: has a tensor {VERSION_STAMP!r}, where the files of an aggregate have "
            "their version; publish without aggregates (aggregate_every=0), or rename it"
        )


def write_aggregate(
    source: Place,
    version: int,
    *,
    base_dir: Path,
    tensors: Callable[[], Sequence[HostTensor]],
    ranks: Ranks,
    made: Made,
    disk: Disk,
) -> None:
    """Replace the aggregate of ``source`` by the one of ``version``.

    ``tensors``: this rank's part of the whole checkpoint. Raises: StreamError, OSError; readers
    do without an aggregate then.
    """
    home = _home_of(source, disk)

    def begin() -> list[Blob]:
        blobs = _blobs(base_dir, tensors(), made)
        if ranks.rank == 0:
            home.begin()
        return blobs

    blobs, said = agreed(
        ranks,
        begin,
        told=lambda found: {"names": [blob.name for blob in found], "mark": home.mark},
    )
    files = [one["names"] for one in said if one["names"]]
    weight_map = weight_map_of(files, first=0, mark=said[0]["mark"])

    def write() -> None:
        if blobs:
            content = b"".join(blob_file_parts(blobs, stamp=spelled(version)))
            home.write(weight_map[blobs[0].name], content)

    agreed(ranks, write, told=lambda _: {})
    index = delta_index(
        version,
        base=0,
        encoding=made.encoding,
        checksum_format=made.checksum_format,
        weight_map=weight_map,
    )

    def finish() -> None:
        if ranks.rank == 0:
            home.finish(json.dumps(index).encode(), set(weight_map.values()))

    agreed(ranks, finish, told=lambda _: {})


class _Home:
    """``aggregate/`` in a directory."""

    mark: str = ""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk

    def begin(self) -> None:
        self._disk.make_directory(self._directory)
        self._disk.unlink(self._directory / INDEX)

    def write(self, name: str, content: bytes) -> None:
        write_durably(self._disk, self._directory / name, content)

    def finish(self, index: bytes, names: Collection[str]) -> None:
        self.write(INDEX, index)
        for name in set(os.listdir(self._directory)) - {INDEX, *names}:
            self._disk.unlink(self._directory / name)


def _home_of(source: Place, disk: Disk) -> _Home | ObjectAggregate:
    if isinstance(source, Objects):
        return ObjectAggregate(source / DIRECTORY)
    return _Home(source / DIRECTORY, disk)


def _blobs(base_dir: Path, tensors: Sequence[HostTensor], made: Made) -> list[Blob]:
    blobs = dict[str, Blob]()
    with StoredTensors.at(base_dir) as base:
        _check_known(base, tensors)
        run_all(
            made.pool,
            [
                (len(one.content), partial(_compare, base.tensors[one.name], one, made, blobs))
                for one in tensors
            ],
        )
    return [blobs[name] for name in sorted(blobs)]


def _check_known(base: StoredTensors, tensors: Sequence[HostTensor]) -> None:
    unknown = sorted({one.name for one in tensors} - base.tensors.keys())
    if unknown:
        raise StreamError(
            f"tensor {unknown[0]!r:.200} ({len(unknown)} in all) is not in the base checkpoint "
            f"{base.folder.path}, and no delta on it makes one; give the base_dir (--base) that "
            "servers are started with"
        )


def _compare(stored: StoredTensor, tensor: HostTensor, made: Made, blobs: dict[str, Blob]) -> None:
    buffer = bytearray(stored.span.length)
    stored.read_into(memoryview(buffer))
    hasher = hasher_for(made.encoding, made.checksum_format)
    content = encode(
        made.encoding,
        bytes_of(buffer),
        tensor.content,
        width=width_of(tensor.dtype),
        hasher=hasher,
    )
    if content is not None:
        blobs[tensor.name] = Blob(name=tensor.name, content=content, checksum=hasher.hexdigest())
