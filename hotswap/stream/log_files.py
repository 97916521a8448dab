"""The blobs of a log: a file for each version, as publishers write them.

Rule: a file is durable before the log names it, and is never changed after; one that no log
names is removed.
"""

from __future__ import annotations

import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hotswap.closing import Closing
from hotswap.errors import UpdateRejected
from hotswap.stream.blobs import Blob, Delta, blobs_of
from hotswap.stream.disk import Disk
from hotswap.stream.errors import LocalDamaged, without_advice
from hotswap.stream.header import header_room, parse_header
from hotswap.stream.layout import DeltaIndex, spelled
from hotswap.stream.log import Holding, Log, LoggedVersion, file_of
from hotswap.stream.publisher_files import Blob as Content
from hotswap.stream.publisher_files import blob_file_parts
from hotswap.stream.source_file import header_of
from hotswap.stream.state import Reserved, unfinished
from hotswap.weights.folder import Folder, OpenFile
from hotswap.weights.roots import Allowed

__all__ = ["OpenLog", "clear_leftovers", "write_version"]


_SHORT_BYTES = 64 * 2**20
"""Files up to here are read at once: hundreds of short reads take longer than the rest."""


_KEPT_BYTES = 2**27
"""What was read is kept for the next pull: at 1 % of a model of bf16, 8 versions of 1 GiB."""

_WRITE_BYTES = 2**20


class OpenLog(Closing):
    """The versions of a log, open for reading; none where there is no log.

    Headers were checked; a blob is read when it is asked for.
    """

    def __init__(
        self,
        held: Holding,
        lengths: Mapping[str, int],
        *,
        paths: Reserved,
        allowed: Allowed | None = None,
    ) -> None:
        """Open what ``held`` names; ``lengths``: tensor name -> bytes. Raises: LocalDamaged."""
        self.indexes: tuple[DeltaIndex, ...] = ()
        self._contents: dict[str, list[_Content]] = {}
        self._stack = ExitStack()
        if held.log is None:
            return
        try:
            with Folder.open(paths.log, allowed=allowed) as folder:
                self.indexes = tuple(
                    self._open(folder, version, lengths) for version in held.versions
                )
        except (UpdateRejected, OSError) as error:
            self._stack.close()
            raise LocalDamaged(
                f"{paths.log}: is not the log that the last pull left ({without_advice(error)})"
            ) from error
        except BaseException:
            self._stack.close()
            raise

    def __repr__(self) -> str:
        return f"<OpenLog {len(self.indexes)} versions, {len(self._contents)} tensors>"

    def close(self) -> None:
        """Close every file. Idempotent; no read may be running."""
        self._stack.close()

    @property
    def names(self) -> frozenset[str]:
        """The tensors that any version changes."""
        return frozenset(self._contents)

    def deltas(self, name: str) -> tuple[Delta, ...]:
        """What changes tensor ``name``, oldest first. Opens nothing; any thread.

        Raises: LocalDamaged.
        """
        try:
            return tuple(content.delta(name) for content in self._contents.get(name, ()))
        except OSError as error:
            raise LocalDamaged(f"tensor {name!r:.200}: the log cannot be read ({error})") from error

    def _open(
        self, folder: Folder, version: LoggedVersion, lengths: Mapping[str, int]
    ) -> DeltaIndex:
        source = f"{folder.path}: {version.file}"
        file = self._stack.enter_context(folder.open_file(version.file))
        if file.size_bytes != version.size_bytes:
            raise LocalDamaged(
                f"{source}: has {file.size_bytes} bytes, but the log says {version.size_bytes}"
            )
        _, text = header_of(file, source=source, at_most=header_room(lengths))
        index, blobs = _located(text, source, version, tuple(lengths.items()))
        content = _Content(file, blobs)
        for name in blobs:
            self._contents.setdefault(name, []).append(content)
        return index


class _Content:
    """The ``blobs`` of an open file; of a short one all are read with the first."""

    def __init__(self, file: OpenFile, blobs: Mapping[str, Blob]) -> None:
        self.blobs: Mapping[str, Blob] = blobs
        self._file = file
        self._lock = threading.Lock()
        self._deltas: Mapping[str, Delta] | None = None

    def __repr__(self) -> str:
        return f"<_Content {self._file.name}>"

    def delta(self, name: str) -> Delta:
        """Raises: OSError."""
        if self._file.size_bytes > _SHORT_BYTES:
            return self.blobs[name].read_from(self._file)
        with self._lock:
            if self._deltas is None:
                self._deltas = _READ.deltas(self._file, self.blobs)
        return self._deltas[name]


class _Whole(NamedTuple):
    """A file in memory, and what lies where in it."""

    content: memoryview
    blobs: Mapping[str, Blob]
    deltas: Mapping[str, Delta]


class _Read:
    """The files that were read last, ``_KEPT_BYTES`` of them: fresh memory costs more than what
    is done with it. One that was written to since is read again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, ...], _Whole] = OrderedDict()

    def __repr__(self) -> str:
        return f"<_Read {len(self._kept)} files>"

    def deltas(self, file: OpenFile, blobs: Mapping[str, Blob]) -> Mapping[str, Delta]:
        """All ``blobs`` of ``file``. Raises: OSError."""
        at = os.fstat(file.fileno())
        key = at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns
        with self._lock:
            known = self._kept.get(key)
            # The same object: then they are as they were.
            if known is not None and known.blobs is blobs:
                self._kept.move_to_end(key)
                return known.deltas
        content = _content_of(file) if known is None else known.content
        deltas = {name: blob.found_in(content) for name, blob in blobs.items()}
        with self._lock:
            self._kept[key] = _Whole(content, blobs, deltas)
            while sum(len(one.content) for one in self._kept.values()) > _KEPT_BYTES:
                self._kept.popitem(last=False)
        return deltas


def _content_of(file: OpenFile) -> memoryview:
    content = np.empty(file.size_bytes, np.uint8).data
    file.read_at(0, content)
    return content.toreadonly()


_READ = _Read()


@lru_cache(maxsize=16)
def _located(
    text: bytes, source: str, version: LoggedVersion, lengths: tuple[tuple[str, int], ...]
) -> tuple[DeltaIndex, Mapping[str, Blob]]:
    """What a header ``text`` says; each pull looks at those of all the versions that are there.

    Raises: UpdateRejected.
    """
    header, length_of = parse_header(text, source=source), dict(lengths)
    unknown = header.spans.keys() - length_of.keys()
    if unknown:
        raise LocalDamaged(f"{source}: changes {min(unknown)!r:.200}, which is not there")
    index = DeltaIndex(
        version=int(version.version),
        base_version=int(version.base_version),
        encoding=version.encoding,
        checksum_format=version.checksum_format,
        file_of=dict.fromkeys(header.spans, version.file),
        text=b"",
    )
    mapped = {name: length_of[name] for name in header.spans}
    blobs = blobs_of(header, index, mapped, file=version.file, source=source)
    return index, {blob.name: blob for blob in blobs}


def write_version(
    paths: Reserved,
    disk: Disk,
    index: DeltaIndex,
    deltas: Mapping[str, Delta],
    *,
    digest: str | None,
) -> LoggedVersion:
    """Write the blobs of a version durably, and say what the log is to say. Raises: OSError."""
    contents = [
        Content(name=name, content=bytes(delta.blob), checksum=delta.checksum)
        for name, delta in deltas.items()
    ]
    at, fd = 0, disk.open(paths.log / file_of(index.version), create=True)
    try:
        for piece in _pieces(blob_file_parts(contents)):
            disk.write(fd, at, memoryview(piece))
            at += len(piece)
        disk.sync(fd)
    finally:
        disk.close(fd)
    return LoggedVersion(
        version=spelled(index.version),
        base_version=spelled(index.base_version),
        encoding=index.encoding,
        checksum_format=index.checksum_format,
        size_bytes=at,
        index_digest=digest,
    )


def _pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """``parts``, short ones as one: hundreds of short writes take longer than the rest."""
    piece, size = list[bytes](), 0
    for part in parts:
        piece.append(part)
        size += len(part)
        if size >= _WRITE_BYTES:
            yield b"".join(piece)
            piece, size = [], 0
    if piece:
        yield b"".join(piece)


def clear_leftovers(paths: Reserved, disk: Disk, log: Log | None) -> None:
    """Remove whatever is in the places of a log and is not of ``log``. Raises: OSError.

    The marker goes last: versions that nothing names are damage.
    """
    _clear_versions(paths, disk, log)
    for marker in (unfinished(paths.log_marker), paths.log_marker):
        if os.path.lexists(marker) and (log is None or marker != paths.log_marker):
            disk.remove(marker)
            disk.sync_directory(paths.home)


def _clear_versions(paths: Reserved, disk: Disk, log: Log | None) -> None:
    try:
        is_directory = stat.S_ISDIR(os.lstat(paths.log).st_mode)
    except FileNotFoundError:
        return
    if not is_directory:
        disk.remove(paths.log)
        return
    named = {version.file for version in log.versions} if log is not None else set[str]()
    leftovers = [path for path in sorted(paths.log.iterdir()) if path.name not in named]
    for leftover in leftovers:
        disk.remove(leftover)
    if leftovers:
        disk.sync_directory(paths.log)
