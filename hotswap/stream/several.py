"""Several tensors read, changed and hashed in one compiled call.

What Python does for a tensor is short, but two threads that do it by turns wait for the
interpreter's lock for longer than it takes. So one thread at a time does it, for many tensors;
then it is nothing of Python for as long as it takes to read and hash them all, while another
thread does it for the next ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from hotswap.native import compiled
from hotswap.stream import gap_kernels
from hotswap.stream.blobs import Delta
from hotswap.stream.checksums import OWN_CHECKSUM
from hotswap.stream.encodings import Encoding
from hotswap.stream.errors import DeltaDamaged
from hotswap.stream.fused import LOOPS, is_worth_fusing
from hotswap.stream.gap_layout import Dense, Sparse, unpacked_bytes
from hotswap.stream.gap_table import Table
from hotswap.stream.native_hash import Hash, addresses, has_native_hash
from hotswap.stream.one_prepares import one_prepares
from hotswap.stream.one_tensor import Changed, OneTensor
from hotswap.stream.piecewise import decoded, decoded_whole
from hotswap.stream.several_room import ROOM_BYTES, Room
from hotswap.stream.words import WORD_BYTES, Words
from hotswap.stream.xor_native import word_room

__all__ = ["in_batches", "load_several", "stage_several"]

_BATCH_BYTES = 2**25
"""What of a file is one task: so much that handing it over takes no time to speak of."""

_BLOB_BYTES = 2**23
"""Of a version, for one task, which decodes all of it beforehand."""

_DECODED_BYTES = 2**25
"""What of a task is decoded beforehand, of all versions together: of what has more the rest is
done one by one."""

_DENSE_BYTES = 2**16
"""Tensors up to here are changed as a whole with others: one by one that takes far longer."""

_MOST_TOLD = 2**18
"""Words that one call tells of, 16 bytes each."""

_NONE: Words = np.empty(0, np.intp)
_NO_FRESH: NDArray[np.uint64] = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """A tensor that is done with others, its changes and the hash of what comes out."""

    one: OneTensor
    changes: Sequence[Sparse | Dense]
    width: int
    hash: Hash

    @property
    def told(self) -> int:
        """Room for the words that are told of."""
        if self.one.recorder is None:
            return 0
        last, words = self.changes[-1], self.one.length // WORD_BYTES
        return 1 + (last.head.changed if isinstance(last, Sparse) else words)


def in_batches(changed: Sequence[Changed]) -> tuple[list[Sequence[Changed]], list[Changed]]:
    """``changed`` as tasks: those that one call may do, as they lie in their files, and others."""
    if not is_worth_fusing(max((one.length for one in changed), default=0)):
        return [], list(changed)
    simple, alone = list[Changed](), list[Changed]()
    for one in changed:
        (simple if _is_simple(one) else alone).append(one)
    return list(_batches(simple)), alone


def _batches(changed: Iterable[Changed]) -> Iterator[Sequence[Changed]]:
    batch, blob_bytes = list[Changed](), 0
    for one in sorted(changed, key=lambda one: (one.file, one.tensor.span.offset)):
        more = sum(len(delta.blob) for delta in one.own)
        if batch and not (_is_near(batch[0], one) and blob_bytes + more <= _BLOB_BYTES):
            yield batch
            batch, blob_bytes = [], 0
        batch.append(one)
        blob_bytes += more
    if batch:
        yield batch


def stage_several(changed: Sequence[Changed]) -> Iterator[OneTensor]:
    """Stage those of ``changed``, a batch, that can be done together; then the others, of which
    nothing was told.

    One that is wrong is among these: done alone, it says why. Raises: LocalDamaged, OSError of
    the local disk.
    """
    # A single one is long, and the steps of it are.
    with one_prepares() if len(changed) > 1 else nullcontext():
        ones = [one.with_earlier() for one in changed]
        taken = list(_all_taken(ones))
    for call in _calls([its for its in taken if its is not None]):
        yield from (its.one for its in call[_run(call) :])
    yield from (one for one, its in zip(ones, taken, strict=True) if its is None)


def _is_simple(one: Changed) -> bool:
    """Whether it may be done with others: nobody has to be told of words alone, nor of more than
    one change, and the new bytes are none or not many."""
    changes, told = one.staging.changes, one.staging.recorder is not None
    if not has_native_hash() or one.length % WORD_BYTES or (told and len(one.own) != 1):
        return False
    if changes is not None and (changes.wants_words(one.file) or one.length > ROOM_BYTES):
        return False
    return all(_is_decoded(delta, one.length) for delta in one.own)


def _is_decoded(delta: Delta, length: int) -> bool:
    """Whether its change can be at hand before the tensor is."""
    is_short = delta.encoding is Encoding.XOR and length <= _DENSE_BYTES
    return is_short or delta.encoding is Encoding.GAP


def _is_near(first: Changed, one: Changed) -> bool:
    end = one.tensor.span.offset + one.length
    return one.file == first.file and end - first.tensor.span.offset <= _BATCH_BYTES


def _all_taken(ones: Iterable[OneTensor]) -> Iterator[_Taken | None]:
    room = _DECODED_BYTES
    for one in ones:
        whole = one.length if one.length <= _DENSE_BYTES else 0
        size = sum(max(whole, unpacked_bytes(delta.blob)) for delta in one.deltas)
        taken = _taken(one) if size <= room else None
        room -= size if taken is not None else 0
        yield taken


def _taken(one: OneTensor) -> _Taken | None:
    """``one`` and all that changes it, of elements of one width; None for what is done alone."""
    if one.last.checksum_format != OWN_CHECKSUM:
        return None
    if not all(_is_decoded(delta, one.length) for delta in one.deltas):
        return None
    decode = decoded_whole if one.length <= _DENSE_BYTES else decoded
    try:
        changes = [decode(delta, one.length, one.staging.memory) for delta in one.deltas]
    except DeltaDamaged:
        return None
    known = [change for change in changes if not isinstance(change, memoryview)]
    widths = {change.head.width for change in known if isinstance(change, Sparse)}
    if len(known) < len(changes) or len(widths) > 1:
        return None
    width = widths.pop() if widths else WORD_BYTES
    taken = _Taken(one=one, changes=known, width=width, hash=Hash())
    return taken if taken.told <= _MOST_TOLD else None


def _calls(taken: Sequence[_Taken]) -> Iterator[Sequence[_Taken]]:
    """``taken``, those together that fit into one call."""
    call, told, kept = list[_Taken](), 0, 0
    for one in sorted(taken, key=lambda one: one.width):
        more_told, more_kept = one.told, one.one.length if one.one.is_kept else 0
        alike = bool(call) and call[0].width == one.width
        if call and not (
            alike and told + more_told <= _MOST_TOLD and kept + more_kept <= ROOM_BYTES
        ):
            yield call
            call, told, kept = [], 0, 0
        call.append(one)
        told, kept = told + more_told, kept + more_kept
    if call:
        yield call


def _run(call: Sequence[_Taken]) -> int:
    """Do those of ``call``; how many of them, the first ones, are right and were told of."""
    for taken in call:
        taken.one.begin()
    table = Table([change for taken in call for change in taken.changes])
    most, told = sum(taken.told for taken in call), np.zeros(len(call), np.int64)
    words = word_room(most) if most else _NONE
    fresh, room = np.empty(most, np.uint64), Room([taken.one for taken in call])
    width = call[0].width
    done = _loop()(
        np.array(addresses(), np.int64),
        np.array(list(_places(call, room)), np.int64),
        room.memory.view(f"<u{width}"),
        room.block // width,
        table.rows,
        words,
        fresh,
        told,
    )
    right = _right(call[:done])
    room.hand_on(right)
    ends = [0, *accumulate(told.tolist())]
    for taken, begin, end in zip(call[:right], ends, ends[1:], strict=False):
        _tell(taken, words[begin:end], fresh[begin:end])
    return right


def _places(call: Sequence[_Taken], room: Room) -> Iterator[tuple[int, ...]]:
    ends = accumulate(len(taken.changes) for taken in call)
    for taken, place, end in zip(call, room.places(), ends, strict=True):
        tensor, width = taken.one.tensor, taken.width
        yield (
            tensor.file.fileno(),
            tensor.span.offset,
            tensor.span.length // width,
            *(size // width for size in place),
            taken.hash.address,
            end - len(taken.changes),
            end,
        )


def _right(call: Sequence[_Taken]) -> int:
    """How many of ``call``, the first ones, came out as published. Raises: LocalDamaged."""
    for one in {id(taken.one.tensor.file): taken.one for taken in call}.values():
        one.check_unchanged()
    wrong = (
        number
        for number, taken in enumerate(call)
        if taken.hash.hexdigest() != taken.one.last.checksum
    )
    return next(wrong, len(call))


def _tell(taken: _Taken, words: Words, fresh: NDArray[np.uint64]) -> None:
    one = taken.one
    if one.recorder is not None:
        one.recorder.note(one.tensor.name, 0, words, fresh)
    one.staging.tally.through(done=one.length)
    # It came out as published, by hotswap's own checksum.
    one.verified(one.last.checksum, one.last.checksum)
    one.end()


def load_several(widths: Iterable[int]) -> None:
    """Load what is called for elements of ``widths`` bytes, and for what changes as words."""
    if not has_native_hash():
        return
    no_tensors, told = np.empty((0, 8), np.int64), np.empty(0, np.int64)
    functions, rows = np.array(addresses(), np.int64), Table([]).rows
    for width in {*widths, WORD_BYTES}:
        memory = np.empty(0, f"<u{width}")
        _loop()(functions, no_tensors, memory, 1, rows, _NONE, _NO_FRESH, told)


def _loop() -> Callable[..., int]:
    return compiled(gap_kernels.several, gap_kernels.read_change_hash, *LOOPS)
