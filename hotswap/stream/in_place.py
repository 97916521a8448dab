"""The steady state: what changes in a local checkpoint, verified and put aside.

Rule: nothing that is read is written here, and without ``changes`` nothing at all. A tensor
is read, changed and hashed a piece at a time; what goes into a journal, as the words that differ,
or into a second copy, counts only once every tensor has been verified.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from hotswap.sparse.recorder import Recorder
from hotswap.stream.apply import Fold, blame, bytes_of, fold
from hotswap.stream.blobs import Delta
from hotswap.stream.checksums import OWN_CHECKSUM, checksum, new_hasher
from hotswap.stream.encodings import Bytes
from hotswap.stream.errors import DeltaDamaged, LocalDamaged
from hotswap.stream.gap import Steps
from hotswap.stream.gap_memory import GapMemory
from hotswap.stream.journal import CHUNK_BYTES, chunk_room
from hotswap.stream.parallel import run_all
from hotswap.stream.piecewise import piecewise, untold
from hotswap.stream.progress import Tally
from hotswap.stream.stored import StoredTensor, StoredTensors
from hotswap.stream.words import WORD_BYTES, Words, whole_words

__all__ = ["STAGING", "Changes", "InPlace", "stage_changes"]

STAGING = "apply"
"""The phase in which nothing that counts is written yet."""


class Changes(Protocol):
    """Where changed pieces of files go: a journal, or a second copy. Any thread."""

    def wants_words(self, file: int) -> bool:
        """Whether ``change`` has to be told which words of file number ``file`` are others."""
        ...

    def change(self, file: int, offset: int, room: Bytes, *, span: int, words: Words) -> None:
        """The ``span`` bytes at ``offset`` are now as ``room`` begins, which is whole words."""
        ...


_NONE: Words = np.empty(0, np.intp)


def _none(_name: str) -> Sequence[Delta]:
    return ()


@dataclass(frozen=True, kw_only=True)
class InPlace:
    """What a staging needs: ``known`` are the recorded xxh3-128 of the old tensors.

    ``earlier`` are deltas that a tensor's own follow on; ``recorder`` does not hear of them.
    ``memory`` is for deltas that will be applied again.
    """

    changes: Changes | None
    pool: Executor
    tally: Tally
    known: Mapping[str, str]
    recorder: Recorder | None = None
    earlier: Callable[[str], Sequence[Delta]] = _none
    memory: GapMemory | None = None
    digests: dict[str, str] = field(default_factory=dict)
    """Filled: tensor name -> xxh3-128 of the new bytes."""


def stage_changes(local: StoredTensors, deltas: Fold, staging: InPlace) -> tuple[str, ...]:
    """Put everything that ``deltas`` change where it goes; the files, by their numbers there.

    A tensor of which only ``earlier`` deltas are known has none in ``deltas``, but its name.

    Raises: DeltaDamaged, LocalDamaged, OSError of the local disk.
    """
    files = tuple(local.files)
    number_of = {file: number for number, file in enumerate(files)}
    tensors = [(local.tensors[name], of) for name, of in deltas.items()]
    total = sum(tensor.span.length for tensor, _ in tensors)
    with staging.tally.phase(STAGING, total_bytes=total):
        run_all(
            staging.pool,
            [
                (
                    tensor.span.length,
                    partial(_stage, tensor, number_of[tensor.file.name], of, staging),
                )
                for tensor, of in tensors
            ],
        )
    return files


def _stage(tensor: StoredTensor, file: int, own: Sequence[Delta], staging: InPlace) -> None:
    earlier = staging.earlier(tensor.name)
    if not earlier:
        _stage_all(tensor, file, own, staging)
        return
    try:
        _stage_all(tensor, file, (*earlier, *own), staging, recorded_from=len(earlier))
    except DeltaDamaged:
        _check_earlier(tensor, earlier, staging)
        raise


def _stage_all(
    tensor: StoredTensor,
    file: int,
    deltas: Sequence[Delta],
    staging: InPlace,
    *,
    recorded_from: int = 0,
) -> None:
    """``recorded_from``: the first of ``deltas`` that the recorder hears of."""
    length, last = tensor.span.length, deltas[-1]
    if staging.recorder is not None and recorded_from < len(deltas):
        staging.recorder.begin(tensor.name, length)
    changes = staging.changes
    wanted = changes is not None and changes.wants_words(file)
    silent = 0 if wanted else _unheard(deltas, staging, recorded_from)
    quiet, steps = _steps(deltas, length, staging, silent)
    published, own = new_hasher(last.checksum_format), new_hasher(OWN_CHECKSUM)
    for at in range(0, length, CHUNK_BYTES):
        size = min(CHUNK_BYTES, length - at)
        room = chunk_room(size, at=tensor.span.offset + at)
        piece = room[:size]
        _read(tensor, piece.data, offset=at)
        for step in quiet:
            step.apply(piece)
        touched = [step.apply(piece) for step in steps]
        published.update(piece.data)
        if last.checksum_format != OWN_CHECKSUM:
            own.update(piece.data)
        new = _any_of(touched[max(0, recorded_from - silent) :], size)
        if changes is not None:
            words = _any_of(touched, size) if recorded_from else new
            changes.change(file, tensor.span.offset + at, room, span=size, words=words)
        if staging.recorder is not None:
            staging.recorder.note(tensor.name, at, new, room.view("<u8")[new])
        staging.tally.through(done=size)
    for step in (*quiet, *steps):
        step.finish()
    if published.hexdigest() != last.checksum:
        raise _why_wrong(tensor, deltas, staging)
    same = last.checksum_format == OWN_CHECKSUM
    staging.digests[tensor.name] = (published if same else own).hexdigest()


def _unheard(deltas: Sequence[Delta], staging: InPlace, recorded_from: int) -> int:
    """How many of ``deltas``, the first ones, no recorder hears of."""
    return len(deltas) if staging.recorder is None else recorded_from


def _steps(
    deltas: Sequence[Delta], length: int, staging: InPlace, silent: int
) -> tuple[list[Steps], list[Steps]]:
    """The first ``silent`` deltas, which do not tell what they change, and the others."""
    among, memory = len(deltas), staging.memory
    quiet = untold(deltas[:silent], length, among=among, memory=memory)
    told = [piecewise(one, length, among=among, memory=memory) for one in deltas[silent:]]
    return list(quiet), told


def _any_of(touched: Sequence[Words], size: int) -> Words:
    """The words of ``size`` bytes that are in any of ``touched``, which sorting would find late."""
    if len(touched) <= 1:
        return touched[0] if touched else _NONE
    seen = np.zeros(whole_words(size) // WORD_BYTES, np.bool_)
    for words in touched:
        seen[words] = True
    return np.flatnonzero(seen)


def _why_wrong(tensor: StoredTensor, deltas: Sequence[Delta], staging: InPlace) -> DeltaDamaged:
    """The version that is damaged. Raises: LocalDamaged when it is the copy."""
    buffer = bytearray(tensor.span.length)
    _read(tensor, memoryview(buffer))
    _check_old(tensor, memoryview(buffer), staging)
    return blame(bytes_of(buffer), deltas)


def _check_earlier(tensor: StoredTensor, earlier: Sequence[Delta], staging: InPlace) -> None:
    """Raises: LocalDamaged when the copy and its ``earlier`` deltas are not what they were."""
    buffer = bytearray(tensor.span.length)
    _read(tensor, memoryview(buffer))
    _check_old(tensor, memoryview(buffer), staging)
    try:
        whole = fold(bytes_of(buffer), earlier) is not None
    except DeltaDamaged:
        whole = False
    if not whole:
        raise LocalDamaged(f"{earlier[-1].where}: what a pull kept of it is damaged")


def _read(tensor: StoredTensor, out: memoryview, *, offset: int = 0) -> None:
    try:
        tensor.read_into(out, offset=offset)
    except OSError as error:
        raise LocalDamaged(f"{tensor.file.name}: cannot be read ({error})") from error


def _check_old(tensor: StoredTensor, old: memoryview, staging: InPlace) -> None:
    """Tell a damaged copy from a damaged delta."""
    known, seen = staging.known.get(tensor.name), checksum(OWN_CHECKSUM, old)
    if seen != known:
        raise LocalDamaged(
            f"{tensor.file.name}: tensor {tensor.name!r:.200} has the checksum {seen}, but the "
            f"last pull left {known}"
        )
