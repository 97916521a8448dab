"""A new copy beside the old one: files of a seed, deltas applied on the way.

Rule: each tensor is read once, changed and verified in memory, and written once, into
``.weight_sync/incoming``; the files take their places when all of them are durable.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from hotswap.stream.apply import Fold, blame, fold
from hotswap.stream.blobs import Delta
from hotswap.stream.checksums import OWN_CHECKSUM, checksum, new_hasher
from hotswap.stream.disk import Disk
from hotswap.stream.encodings import Bytes
from hotswap.stream.errors import SourceNotReady
from hotswap.stream.header import Span
from hotswap.stream.layout import INDEX
from hotswap.stream.objects import ObjectFile, Objects
from hotswap.stream.parallel import Task, run_all
from hotswap.stream.progress import Tally
from hotswap.stream.stored import StoredFile, StoredTensors
from hotswap.weights.readable import AnyFile

__all__ = ["Seeding", "seed"]

_PIECE_BYTES = 16 * 2**20

_WINDOW_BYTES, _READERS = 32 * 2**20, 4
"""Of an object store so much is read at once, however many tensors that is, and so often: an
answer takes long, and the store many questions at a time."""


@dataclass(frozen=True, kw_only=True)
class Seeding:
    """Where a seed goes, and by what."""

    incoming: Path
    disk: Disk
    pool: Executor
    tally: Tally
    digests: dict[str, str] = field(default_factory=dict)
    """Filled: tensor name -> xxh3-128 of what was written."""


def seed(
    source: StoredTensors, deltas: Fold, sides: Sequence[StoredTensors], seeding: Seeding
) -> tuple[str, ...]:
    """Write ``source`` with ``deltas`` applied, durably; the names of the files written.

    ``sides``: checkpoints whose files beside the weights are copied too, later ones over
    earlier ones. Raises: SourceNotReady, DeltaDamaged, OSError of the local disk.
    """
    with ExitStack() as stack:
        files = {name: _create(seeding, name, stack) for name in source.files}
        tasks = list[Task]()
        for name, stored in source.files.items():
            tasks += _tasks(source, stored, deltas, files[name], seeding)
        total = sum(stored.header.file_bytes for stored in source.files.values())
        with seeding.tally.phase("seed", total_bytes=total):
            if _is_far(source):
                with ThreadPoolExecutor(_READERS, "hotswap-read") as readers:
                    run_all(readers, tasks)
            else:
                run_all(seeding.pool, tasks)
            small = _copy_sides(source, sides, seeding, stack)
            for fd in (*files.values(), *small.values()):
                seeding.disk.sync(fd)
            seeding.disk.sync_directory(seeding.incoming)
    return (*files, *small)


def _create(seeding: Seeding, name: str, stack: ExitStack) -> int:
    fd = seeding.disk.open(seeding.incoming / name, create=True)
    stack.callback(seeding.disk.close, fd)
    return fd


def _is_far(source: StoredTensors) -> bool:
    return isinstance(source.folder.path, Objects)


@dataclass(frozen=True, slots=True)
class _Part:
    """A tensor of a file, and what changes it; ``name`` None for one that is copied and no more."""

    name: str | None
    span: Span
    change: Sequence[Delta]

    @property
    def end(self) -> int:
        return self.span.offset + self.span.length


def _tasks(
    source: StoredTensors, stored: StoredFile, deltas: Fold, fd: int, seeding: Seeding
) -> Iterator[Task]:
    head = _Part(None, Span(dtype="U8", shape=(), offset=0, length=stored.header.data_offset), ())
    parts = [head]
    for name, span in stored.header.spans.items():
        placed = source.tensors.get(name)
        # A tensor that the index places in another file is copied, and is nothing else.
        is_it = placed is not None and placed.file is stored.file
        parts.append(_Part(name if is_it else None, span, deltas.get(name, ()) if is_it else ()))
    for window in _windows(parts) if _is_far(source) else ([part] for part in parts):
        work = partial(_one if len(window) == 1 else _several, stored.file, window, fd, seeding)
        yield sum(part.span.length for part in window), work


def _windows(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """What lies side by side, as long as a window at most, or one part that is longer."""
    window: list[_Part] = []
    for part in sorted(parts, key=lambda part: part.span.offset):
        begin = window[0].span.offset if window else 0
        if window and (window[-1].end != part.span.offset or part.end - begin > _WINDOW_BYTES):
            yield window
            window = []
        window.append(part)
    yield window


def _one(file: AnyFile, window: Sequence[_Part], fd: int, seeding: Seeding) -> None:
    (part,) = window
    offset, length = part.span.offset, part.span.length
    if part.change:
        _change(file, offset, length, part.change, fd, seeding)
    else:
        _copy(file, offset, length, fd, seeding, part.name)


def _several(file: AnyFile, window: Sequence[_Part], fd: int, seeding: Seeding) -> None:
    begin = window[0].span.offset
    room = np.empty(window[-1].end - begin, np.uint8)
    _read(file, begin, room.data)
    for part in window:
        tensor = room[part.span.offset - begin : part.end - begin]
        if part.change:
            # Of its own: kernels want it to begin at a whole word.
            changed = tensor.copy()
            digest = fold(changed, part.change)
            if digest is None:
                raise blame(tensor, part.change)
            tensor[:] = changed
        else:
            digest = checksum(OWN_CHECKSUM, tensor.data)
        if part.name is not None:
            seeding.digests[part.name] = digest
    _write(seeding, fd, begin, room.data)


def _copy(
    file: AnyFile, offset: int, length: int, fd: int, seeding: Seeding, name: str | None = None
) -> None:
    hasher = new_hasher(OWN_CHECKSUM)
    most = _WINDOW_BYTES if isinstance(file, ObjectFile) else _PIECE_BYTES
    buffer = _piece_room(min(length, most))
    for at in range(0, length, most):
        piece = buffer[: min(most, length - at)]
        _read(file, offset + at, piece)
        hasher.update(piece)
        _write(seeding, fd, offset + at, piece)
    if name is not None:
        seeding.digests[name] = hasher.hexdigest()


def _change(
    file: AnyFile,
    offset: int,
    length: int,
    deltas: Sequence[Delta],
    fd: int,
    seeding: Seeding,
) -> None:
    tensor = np.empty(length, np.uint8)  # a bytearray is cleared first, with the GIL held
    _read(file, offset, tensor.data)
    digest = fold(tensor, deltas)
    if digest is None:
        _read(file, offset, tensor.data)
        raise blame(tensor, deltas)
    seeding.digests[deltas[-1].name] = digest
    _write(seeding, fd, offset, tensor.data)


def _piece_room(size: int) -> memoryview:
    """A buffer of this thread's own, kept, of ``size`` bytes."""
    room: Bytes | None = getattr(_own, "room", None)
    if room is None or len(room) < size:
        room = _own.room = np.empty(size, np.uint8)
    return room[:size].data


_own = threading.local()


def _read(file: AnyFile, offset: int, out: memoryview) -> None:
    try:
        file.read_at(offset, out)
    except OSError as error:
        raise SourceNotReady(f"{file.name}: cannot be copied ({error}); pull again") from error


def _write(seeding: Seeding, fd: int, offset: int, content: memoryview) -> None:
    for at in range(0, len(content), _PIECE_BYTES):
        piece = content[at : at + _PIECE_BYTES]
        seeding.disk.write(fd, offset + at, piece)
        seeding.tally.through(read=len(piece), written=len(piece), done=len(piece))


def _copy_sides(
    source: StoredTensors, sides: Sequence[StoredTensors], seeding: Seeding, stack: ExitStack
) -> Mapping[str, int]:
    origin = {name: one for one in sides for name in one.side_files()}
    if source.indexed:
        origin[INDEX] = source
    copied = dict[str, int]()
    for name, one in origin.items():
        copied[name] = fd = _create(seeding, name, stack)
        with one.folder.open_file(name) as file:
            _copy(file, 0, file.size_bytes, fd, seeding)
    return copied
