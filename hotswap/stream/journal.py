"""The redo journal: all that is needed to finish a version that is being written.

``.weight_sync/journal`` holds absolute bytes and names, never differences, so that it
may be applied again from any point. It is renamed into place whole and synced before
the first byte of the checkpoint changes, and unlinked once the new state is durable.

Layout, little-endian: 16 bytes ``hotswap-journal2``; records; JSON; a 24-byte end (JSON
length u8 bytes, xxh3-64 of the JSON, ``hsw-end1``). A record is a head (kind u4, file
number u4, offset u8, span u4, payload length u4, xxh3-64 u8 of what comes before it in the
head and of the payload) and its payload: ``RAW``
``span`` bytes; ``WORDS`` the 8-byte words of the span that change, then their numbers (u4),
ascending. The last word of a span may reach past its end.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from hotswap.stream.ahead import STATE, written_ahead
from hotswap.stream.disk import Disk
from hotswap.stream.encodings import Bytes
from hotswap.stream.errors import LocalDamaged
from hotswap.stream.layout import is_number
from hotswap.stream.state import State, are_plain, open_at_once, unfinished
from hotswap.stream.words import WORD_BYTES, Words, whole_words

__all__ = ["CHUNK_BYTES", "JournalReader", "JournalWriter", "Outcome", "Record", "chunk_room"]

CHUNK_BYTES = 2 * 2**20
"""The longest span of a record. Shorter ones are passed between threads more often than is good."""

_MAGIC = b"hotswap-journal2"
_END = struct.Struct("<QQ8s")
_END_MAGIC = b"hsw-end1"
_HEAD = struct.Struct("<IIQII")
_DIGEST = struct.Struct("<Q")
_RAW, _WORDS = 0, 1
_PAYLOAD = _HEAD.size + _DIGEST.size
_NUMBER_BYTES = 4
_MAX_OFFSET = 2**63 - 1
_PAGE_BYTES = 4096


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the journal makes of the directory, beside its records.

    ``before`` is the digest of the state file that it starts from, None without one.
    ``files`` are the files that records number. ``moves`` come from ``incoming``,
    ``removes`` go. What lies where those of ``moves`` go that are in ``keeps`` becomes the spare.
    """

    before: str | None
    state: State
    files: tuple[str, ...] = ()
    moves: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """New bytes of a span of a file; ``payload_offset`` is in the journal."""

    head: bytes
    kind: int
    file: int
    offset: int
    span: int
    payload_offset: int
    payload_bytes: int
    digest: int


class JournalWriter:
    """Writes a journal under a temporary name; nothing counts before ``commit``."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._unfinished = unfinished(path)
        self._lock = threading.Lock()
        self._fd = disk.open(self._unfinished, create=True)
        self.size_bytes: int = len(_MAGIC)

    def __repr__(self) -> str:
        return f"<JournalWriter {self._path} {self.size_bytes} bytes>"

    def change(self, file: int, offset: int, room: Bytes, *, span: int, words: Words) -> None:
        """Note that ``words`` of the ``span`` bytes at ``offset`` are now as ``room`` begins.

        ``room`` is whole words, at most ``CHUNK_BYTES``. Any thread. Raises: OSError.
        """
        if not words.size:
            return
        if words.size * (WORD_BYTES + _NUMBER_BYTES) >= span:
            record = _record_room(span)
            record[_PAYLOAD:] = room[:span]
            self._record(_RAW, file, offset, span, record)
            return
        values = words.size * WORD_BYTES
        record = _record_room(values + words.size * _NUMBER_BYTES)
        record[_PAYLOAD : _PAYLOAD + values].view("<u8")[:] = room.view("<u8")[words]
        record[_PAYLOAD + values :].view("<u4")[:] = words
        self._record(_WORDS, file, offset, span, record)

    def wants_words(self, file: int) -> bool:
        """Whether ``change`` has to be told which words are others: always."""
        return file >= 0

    def commit(self, outcome: Outcome) -> None:
        """Make the journal durable and give it its name. Raises: OSError.

        The state that it ends with is written first, and goes again when that fails.
        """
        place = self._path.with_name(STATE)
        ahead = written_ahead(self._disk, place, outcome.state)
        try:
            self._make_durable(outcome)
        except BaseException:
            if ahead:
                with suppress(OSError):
                    self._disk.unlink(unfinished(place))
            raise
        self._disk.rename(self._unfinished, self._path)
        self._disk.sync_directory(self._path.parent)

    def close(self) -> None:
        """Close the file, committed or not; remove it when not."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._disk.close(fd)
            self._disk.unlink(self._unfinished)

    def _make_durable(self, outcome: Outcome) -> None:
        text = msgspec.json.encode(outcome)
        self._disk.write(self._fd, 0, memoryview(_MAGIC))
        end = _END.pack(len(text), xxhash.xxh3_64_intdigest(text), _END_MAGIC)
        self._append(memoryview(text + end))
        self._disk.sync(self._fd)

    def _record(self, kind: int, file: int, offset: int, span: int, record: Bytes) -> None:
        """Fill in the head, before the payload that is there already, and write both."""
        payload = record[_PAYLOAD:].data
        head = _HEAD.pack(kind, file, offset, span, len(payload))
        record.data[:_PAYLOAD] = head + _DIGEST.pack(_digest(head, payload))
        self._append(record.data)

    def _append(self, content: memoryview) -> None:
        with self._lock:
            at, self.size_bytes = self.size_bytes, self.size_bytes + len(content)
        self._disk.write(self._fd, at, content)


class JournalReader:
    """A journal that was committed, open for reading."""

    def __init__(self, path: Path) -> None:
        """Open and parse. Raises: LocalDamaged when it is not what was written, OSError."""
        self._path = path
        self._file = FileIO(path, opener=open_at_once)
        try:
            self._size = os.fstat(self._file.fileno()).st_size
            self._end, outcome = self._outcome()
            self.outcome: Outcome = outcome
        except BaseException:
            self._file.close()
            raise

    def __repr__(self) -> str:
        return f"<JournalReader {self._path} to version {self.outcome.state.version}>"

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def records(self) -> Iterator[Record]:
        """Every record in order, its payload unread. Raises: LocalDamaged, OSError."""
        at = len(_MAGIC)
        while at < self._end:
            both = self._read(at, _PAYLOAD)
            head = both[: _HEAD.size]
            kind, file, offset, span, length = _HEAD.unpack(head)
            (digest,) = _DIGEST.unpack_from(both, _HEAD.size)
            at += len(both)
            if not self._is_sound(kind, file, offset, span, length) or at + length > self._end:
                raise self._damaged()
            yield Record(
                head=head,
                kind=kind,
                file=file,
                offset=offset,
                span=span,
                payload_offset=at,
                payload_bytes=length,
                digest=digest,
            )
            at += length

    def check(self) -> None:
        """Read every payload. Raises: LocalDamaged when one is not what was written."""
        for record in self.records():
            self.payload(record)

    def payload(self, record: Record) -> bytes:
        """The payload, checked. Any thread. Raises: LocalDamaged, OSError."""
        payload = self._read(record.payload_offset, record.payload_bytes)
        if _digest(record.head, payload) != record.digest:
            raise self._damaged()
        return payload

    def patch(self, record: Record, room: Bytes) -> None:
        """Turn the old bytes of the span, with which ``room`` begins, into the new ones.

        ``room`` is whole words, the last of them perhaps past the span. Raises: LocalDamaged,
        OSError.
        """
        payload = self.payload(record)
        if record.kind == _RAW:
            room[: record.span] = np.frombuffer(payload, np.uint8)
            return
        count = len(payload) // (WORD_BYTES + _NUMBER_BYTES)
        words = np.frombuffer(payload, "<u4", count, count * WORD_BYTES)
        if count and words.max() >= len(room) // WORD_BYTES:
            raise self._damaged()
        room.view("<u8")[words.astype(np.intp)] = np.frombuffer(payload, "<u8", count)

    def _outcome(self) -> tuple[int, Outcome]:
        if self._size < len(_MAGIC) + _END.size or self._read(0, len(_MAGIC)) != _MAGIC:
            raise self._damaged()
        length, digest, magic = _END.unpack(self._read(self._size - _END.size, _END.size))
        begin = self._size - _END.size - length
        if magic != _END_MAGIC or begin < len(_MAGIC):
            raise self._damaged()
        text = self._read(begin, length)
        if xxhash.xxh3_64_intdigest(text) != digest:
            raise self._damaged()
        try:
            outcome = msgspec.json.decode(text, type=Outcome)
        except (ValueError, RecursionError) as error:
            # Whole, and of another schema: what it would have to do is not known here.
            raise self._damaged() from error
        names = *outcome.files, *outcome.moves, *outcome.removes, *outcome.keeps
        if not are_plain(names) or not is_number(outcome.state.version):
            raise self._damaged()
        return begin, outcome

    def _is_sound(self, kind: int, file: int, offset: int, span: int, length: int) -> bool:
        """Whether a record's head can have been written by this code."""
        if kind == _RAW:
            fits = length == span
        else:
            fits = kind == _WORDS and length % (WORD_BYTES + _NUMBER_BYTES) == 0
        named = file < len(self.outcome.files)
        return fits and named and span <= CHUNK_BYTES and offset <= _MAX_OFFSET - span

    def _read(self, offset: int, length: int) -> bytes:
        content = os.pread(self._file.fileno(), length, offset)
        if len(content) != length:
            raise self._damaged()
        return content

    def _damaged(self) -> LocalDamaged:
        return LocalDamaged(
            f"{self._path}: not the journal that a pull left; the local checkpoint is of two "
            "versions and has to be seeded again"
        )


def chunk_room(span: int, *, at: int = 0) -> Bytes:
    """A buffer of this thread's own: ``span`` bytes, up to a whole word, what is past them zero.

    It is the same each time: fresh memory costs more than what is done with it. ``at`` is where in
    its file the span lies: a processor may copy three times slower from and to memory that begins
    a few bytes before or after in its page, so that this one begins half a page from there.
    """
    pages: Bytes | None = getattr(_own, "pages", None)
    if pages is None or len(pages) < span + _PAGE_BYTES:
        memory = np.empty(max(span, CHUNK_BYTES) + 2 * _PAGE_BYTES, np.uint8)
        pages = _own.pages = memory[-memory.ctypes.data % _PAGE_BYTES :]
    begin = (at + _PAGE_BYTES // 2) % _PAGE_BYTES // WORD_BYTES * WORD_BYTES
    room = pages[begin : begin + whole_words(span)]
    room[span:] = 0
    return room


def _record_room(size: int) -> Bytes:
    """A buffer of this thread's own for a record of ``size`` bytes of payload."""
    room: Bytes | None = getattr(_own, "record", None)
    if room is None:
        room = _own.record = np.empty(_PAYLOAD + CHUNK_BYTES, np.uint8)
    return room[: _PAYLOAD + size]


_own = threading.local()


def _digest(head: bytes, payload: bytes | memoryview) -> int:
    digest = xxhash.xxh3_64(head)
    digest.update(payload)
    return digest.intdigest()
