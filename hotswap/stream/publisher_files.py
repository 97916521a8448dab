"""A version's directory, written under a hidden name and renamed when it is whole.

Rule: what readers can see is whole: every file is durable before the directory gets its
name, and a name that is taken is never given again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from hotswap.stream.disk import Disk
from hotswap.stream.errors import StreamError
from hotswap.stream.frames import Bytes
from hotswap.stream.header import LENGTH_BYTES
from hotswap.stream.layout import INDEX, directory_of, published_versions
from hotswap.stream.object_draft import ObjectDraft
from hotswap.stream.objects import Objects
from hotswap.stream.place import Place
from hotswap.stream.publisher_tensors import HostTensor

__all__ = [
    "VERSION_STAMP",
    "AnyDraft",
    "Blob",
    "Draft",
    "blob_file_parts",
    "draft_of",
    "full_file_parts",
    "weight_map_of",
]

VERSION_STAMP = "version"
"""Under which name each file of an aggregate says its version, among the checksums of tensors."""

_WRITE_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """One tensor's change, and the checksum of its new bytes."""

    name: str
    content: bytes
    checksum: str


class Draft:
    """The directory of ``version``, hidden until ``publish``."""

    file_bytes: int = 4 * 2**30
    """How long a file of whole tensors is at most, but for one that is longer."""

    mark: str = ""
    """What the names of its files end with."""

    def __init__(self, source: Path, version: int, disk: Disk) -> None:
        self.version: int = version
        self._source = source
        self.directory: Path = directory_of(source, version)
        self.hidden: Path = source / f".{self.directory.name}.tmp"
        self._disk = disk

    def __repr__(self) -> str:
        return f"<Draft {self.hidden}>"

    @property
    def where(self) -> Path:
        """The version's directory."""
        return self.directory

    def is_visible(self) -> bool:
        """Whether the version is there, and the last one; nobody else publishes meanwhile."""
        return max(published_versions(self._source), default=0) == self.version

    def begin(self) -> None:
        """Create the hidden directory, empty. Raises: StreamError when the version is there."""
        self._check_new()
        self.discard()
        self._disk.make_directory(self.hidden)

    def write(self, name: str, parts: Iterable[Bytes | bytes]) -> int:
        """Write one file, durably; its length. Raises: OSError."""
        fd, at = self._disk.open(self.hidden / name, create=True), 0
        try:
            for part in parts:
                content = memoryview(part) if isinstance(part, bytes) else part.data
                for begin in range(0, len(content), _WRITE_BYTES):
                    piece = content[begin : begin + _WRITE_BYTES]
                    self._disk.write(fd, at, piece)
                    at += len(piece)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)
        return at

    def publish(self, index: Mapping[str, object]) -> None:
        """Write the index and let readers see the version. Raises: StreamError, OSError."""
        self.write(INDEX, [json.dumps(index).encode()])
        self._disk.sync_directory(self.hidden)
        self._check_new()
        self._disk.rename(self.hidden, self.directory)
        self._disk.sync_directory(self.directory.parent)

    def discard(self) -> None:
        """Remove what was written and not published. Raises: OSError."""
        if self.hidden.exists():
            shutil.rmtree(self.hidden)

    def _check_new(self) -> None:
        if self.directory.exists():
            raise StreamError(
                f"{self.directory}: is there already, and a version is never written over; see "
                "who else publishes to this source"
            )


AnyDraft: TypeAlias = Draft | ObjectDraft
"""A version that is being written. ``mark`` is rank 0's on every rank."""


def draft_of(source: Place, version: int, disk: Disk) -> AnyDraft:
    """What ``version`` is written with, in a directory or an object store."""
    if isinstance(source, Objects):
        return ObjectDraft(source, version)
    return Draft(source, version, disk)


def weight_map_of(files: Sequence[Sequence[str]], *, first: int, mark: str = "") -> dict[str, str]:
    """Tensor name -> file, for the names in each of ``files``, numbered from ``first`` on."""
    total = len(files)
    return {
        name: f"model-{number:05d}-of-{total:05d}{mark}.safetensors"
        for number, names in enumerate(files, first)
        for name in names
    }


def blob_file_parts(blobs: Sequence[Blob], *, stamp: str | None = None) -> Iterator[bytes]:
    """A safetensors file of blobs, piece by piece; ``stamp`` marks an aggregate's version."""
    metadata = {blob.name: blob.checksum for blob in blobs}
    if stamp is not None:
        metadata[VERSION_STAMP] = stamp
    entries = [(blob.name, "U8", (len(blob.content),), len(blob.content)) for blob in blobs]
    yield _header(entries, metadata)
    for blob in blobs:
        yield blob.content


def full_file_parts(
    tensors: Sequence[HostTensor], content: Callable[[HostTensor], Bytes]
) -> Iterator[Bytes | bytes]:
    """A safetensors file of whole tensors, piece by piece; ``content`` makes one's new bytes."""
    entries = [(one.name, one.dtype, one.shape, len(one.content)) for one in tensors]
    yield _header(entries, {"format": "pt"})
    for one in tensors:
        yield content(one)


def _header(
    entries: Sequence[tuple[str, str, tuple[int, ...], int]], metadata: Mapping[str, str]
) -> bytes:
    header: dict[str, object] = {"__metadata__": metadata}
    at = 0
    for name, dtype, shape, length in entries:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + length]}
        at += length
    text = json.dumps(header, separators=(",", ":")).encode()
    # The format's own writer aligns the first tensor too.
    text += b" " * (-len(text) % LENGTH_BYTES)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text
