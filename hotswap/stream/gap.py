"""``gap``: which elements changed, as distances, and how, as new XOR old.

What it costs follows the number of changed elements. Where the plain xor of the whole
tensor is smaller the blob holds that, so that it is never longer by more than its head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hotswap.stream.checksums import Hasher
from hotswap.stream.frames import Bytes, frame_of
from hotswap.stream.gap_layout import (
    HEAD_BYTES,
    Sparse,
    dense_blob,
    head_of,
    parse_sparse,
    sparse_blob,
)
from hotswap.stream.gap_native import (
    NativeSteps,
    NativeTurns,
    has_native,
)
from hotswap.stream.gap_plain import Found, PlainSteps, plain_changes, plain_symbols
from hotswap.stream.gap_search import native_changes, native_symbols
from hotswap.stream.native_hash import Hash
from hotswap.stream.words import Words

__all__ = ["Steps", "decode_gap", "encode_gap", "steps_in_turn", "steps_of"]

_PIECE_BYTES = 2**21
"""Compared and hashed together: what was read once is still in the processor's cache.

Shorter ones cost more than they save: threads wait for the interpreter's lock after each step.
"""

_HASHED_BYTES = 2**23
"""As long pieces where one loop compares and hashes, a small part at a time."""

_EXACT_BYTES = 2**20
"""Up to here both ways are always written and the shorter one is taken."""

_SAMPLE_BYTES = 2**14
_SAMPLES_PER_64 = 2
_LEAST_SAMPLES = 8
_SAFE = 0.85
"""What xor may be shorter by than its samples say: short frames are rather shorter themselves."""

_FIRST_BYTES = _SAMPLE_BYTES // 4
_FIRST_CHANGES = 128
_FIRST_SAFE = 0.75
"""Of each sample this much is enough where it has so many changes and leaves no doubt at all."""

_REGULAR = 2
_SPARSE_SHARE = 16
_SHORT_GAPS = 512
"""Mean gaps longer than this are written with two bytes each."""


class Steps(Protocol):
    """A change on its way through its tensor, whatever its encoding."""

    def apply(self, piece: Bytes) -> Words:
        """Turn the next ``piece`` from old bytes into new ones; the words that may be others now.

        Raises: DeltaDamaged.
        """
        ...

    def finish(self) -> None:
        """The tensor is through. Raises: DeltaDamaged when the change is not."""
        ...


def encode_gap(
    old: Bytes,
    new: Bytes,
    width: int,
    *,
    hasher: Hasher | None = None,
    native: bool | None = None,
) -> bytes | None:
    """The blob that turns ``old`` into ``new``, elements of ``width`` bytes; None for no change.

    ``hasher`` takes every byte of ``new``, in order: a checksum costs less while they are at
    hand, and least by a ``Hash``. ``native``: compiled or not, None for compiled where that can be.
    """
    at, values = _changes(old, new, width, hasher, native)
    if not len(at):
        return None
    elements = len(new) // width
    planes = [np.ascontiguousarray(values.view(np.uint8)[byte::width]) for byte in range(width)]
    symbols_of = native_symbols if _is_native(native) else plain_symbols
    gap_width = 1 if elements <= _SHORT_GAPS * len(at) else 2
    blob = sparse_blob(symbols_of(at, gap_width), planes, elements=elements)
    if not _may_be_longer(blob, old, new, at, width):
        return blob
    frame = frame_of(np.bitwise_xor(old, new).data)
    if HEAD_BYTES + len(frame) >= len(blob):
        return blob
    return dense_blob(frame, width=width, elements=elements, changed=len(at))


def decode_gap(blob: memoryview, length: int, *, where: str) -> Sparse | memoryview:
    """What ``blob`` changes in a tensor of ``length`` bytes, or the xor frame that it holds.

    ``where`` names version and tensor in messages. Raises: DeltaDamaged.
    """
    head = head_of(blob, length, where=where)
    if head.is_dense:
        return blob[HEAD_BYTES:]
    return parse_sparse(blob, head, where=where)


def steps_of(sparse: Sparse, *, native: bool | None = None) -> Steps:
    """``sparse`` at the beginning of its tensor."""
    return NativeSteps(sparse) if _is_native(native) else PlainSteps(sparse)


def steps_in_turn(changes: Sequence[Sparse], *, native: bool | None = None) -> Sequence[Steps]:
    """``changes`` at the beginning of their tensor, for who asks for no words.

    Pieces are of whole elements.
    """
    if not _is_native(native):
        return [PlainSteps(change, told=False) for change in changes]
    alike = groupby(changes, key=lambda change: change.head.width)
    return [NativeTurns(list(of)) for _, of in alike]


def _is_native(native: bool | None) -> bool:
    return has_native() if native is None else native


def _changes(
    old: Bytes, new: Bytes, width: int, hasher: Hasher | None, native: bool | None
) -> Found:
    find, size = _finder(hasher, native)
    ats, values = list[NDArray[np.int64]](), list[NDArray[Any]]()
    for begin in range(0, len(new), size):
        end = begin + size
        at, value = find(old[begin:end], new[begin:end], width)
        at += begin // width
        ats.append(at)
        values.append(value)
    if not ats:
        return np.empty(0, np.int64), np.empty(0, f"<u{width}")
    if len(ats) == 1:
        return ats[0], values[0]
    return np.concatenate(ats), np.concatenate(values)


def _finder(
    hasher: Hasher | None, native: bool | None
) -> tuple[Callable[[Bytes, Bytes, int], Found], int]:
    """What finds the changes of a piece, which ``hasher`` takes then, and how long pieces are."""
    is_native = _is_native(native)
    if is_native and isinstance(hasher, Hash):
        return partial(native_changes, hash=hasher), _HASHED_BYTES
    find = native_changes if is_native else plain_changes

    def then_hash(old: Bytes, new: Bytes, width: int) -> Found:
        found = find(old, new, width)
        if hasher is not None:
            hasher.update(new.data)
        return found

    return then_hash, _PIECE_BYTES


def _may_be_longer(blob: bytes, old: Bytes, new: Bytes, at: NDArray[np.int64], width: int) -> bool:
    """Whether the xor of the whole tensor might be shorter than ``blob``.

    To compress it costs more than all the rest, so that for long tensors with few changes
    samples answer; a sample that leaves a doubt is a yes.
    """
    # So few bytes a change are of a pattern, of which a sample says nothing.
    is_regular = len(blob) * _REGULAR < len(at)
    if is_regular or len(new) <= _EXACT_BYTES or len(at) * _SPARSE_SHARE * width > len(new):
        return True
    windows = len(new) // _SAMPLE_BYTES
    samples = max(_LEAST_SAMPLES, windows * _SAMPLES_PER_64 // 64)
    begins = [number * windows // samples * _SAMPLE_BYTES for number in range(samples)]
    first, changed = _sampled(old, new, at, width, begins, _FIRST_BYTES)
    if changed >= _FIRST_CHANGES and _FIRST_SAFE * first * len(at) >= len(blob) * changed:
        return False
    frame, changed = _sampled(old, new, at, width, begins, _SAMPLE_BYTES)
    return _SAFE * frame * len(at) < len(blob) * changed or not changed


def _sampled(
    old: Bytes, new: Bytes, at: NDArray[np.int64], width: int, begins: Sequence[int], size: int
) -> tuple[int, int]:
    """How long the xor of ``size`` bytes from each of ``begins`` on is, and the changes in it."""
    edges = np.array([(begin, begin + size) for begin in begins]) // width
    changed = int(np.diff(np.searchsorted(at, edges)).sum())
    parts = [slice(begin, begin + size) for begin in begins]
    change = np.concatenate([old[part] ^ new[part] for part in parts])
    # One frame: what each costs, however little is in it, is no more than in the whole's.
    return len(frame_of(change.data)), changed
