"""One tensor, from its old bytes to the verified new ones: at once, in a few calls or in steps.

Which way it goes is a matter of time only: all give the same bytes, and tell the same words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hotswap.sparse.recorder import Recorder
from hotswap.stream.apply import blame, bytes_of, fold
from hotswap.stream.blobs import Delta
from hotswap.stream.checksums import OWN_CHECKSUM, checksum, new_hasher
from hotswap.stream.encodings import Bytes
from hotswap.stream.errors import DeltaDamaged, LocalDamaged
from hotswap.stream.fused import PASSING_BYTES, Fused
from hotswap.stream.gap import Steps
from hotswap.stream.journal import CHUNK_BYTES, chunk_room
from hotswap.stream.piecewise import piecewise, untold
from hotswap.stream.staging import InPlace
from hotswap.stream.stored import StoredTensor
from hotswap.stream.words import WORD_BYTES, Words, different_words, whole_words

__all__ = ["Changed", "OneTensor", "stage_one"]

_SHORT_BYTES = 2**11
"""Tensors up to here are changed at once: steps would take longer than what they do."""

_FUSED_BYTES = 4 * 2**20
"""What is handed on at once where no journal takes it."""

_NONE: Words = np.empty(0, np.intp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """``tensor``, of file number ``file``, and its ``own`` deltas."""

    tensor: StoredTensor
    file: int
    own: Sequence[Delta]
    staging: InPlace

    @property
    def length(self) -> int:
        """Bytes of the tensor."""
        return self.tensor.span.length

    def with_earlier(self) -> OneTensor:
        """It and those that its own follow on, which are read. Raises: LocalDamaged."""
        earlier = self.staging.earlier(self.tensor.name)
        return OneTensor(
            tensor=self.tensor,
            file=self.file,
            deltas=(*earlier, *self.own),
            own_from=len(earlier),
            staging=self.staging,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OneTensor:
    """``tensor``, of file number ``file``, and all ``deltas`` that it goes through.

    The first ``own_from`` of them came before, and no recorder hears of them.
    """

    tensor: StoredTensor
    file: int
    deltas: Sequence[Delta]
    own_from: int
    staging: InPlace

    @property
    def length(self) -> int:
        """Bytes of the tensor."""
        return self.tensor.span.length

    @property
    def last(self) -> Delta:
        """The one whose checksum has to come out."""
        return self.deltas[-1]

    @property
    def recorder(self) -> Recorder | None:
        """Who hears of the words that ``deltas`` from ``own_from`` on change."""
        return self.staging.recorder if self.own_from < len(self.deltas) else None

    @property
    def wants_words(self) -> bool:
        """Whether ``hand_on`` has to be told which words are others."""
        changes = self.staging.changes
        return changes is not None and changes.wants_words(self.file)

    @property
    def is_kept(self) -> bool:
        """Whether the new bytes go anywhere."""
        return self.staging.changes is not None

    def begin(self) -> None:
        """What was handed on before does not count."""
        if self.recorder is not None:
            self.recorder.begin(self.tensor.name, self.length)

    def end(self) -> None:
        """All that was handed on counts."""
        if self.recorder is not None:
            self.recorder.end(self.tensor.name)

    def read(self, out: memoryview, *, offset: int = 0) -> None:
        """The old bytes from ``offset`` on. Raises: LocalDamaged."""
        try:
            self.tensor.read_into(out, offset=offset)
        except OSError as error:
            raise self._unreadable(error) from error

    def check_unchanged(self) -> None:
        """Raises: LocalDamaged when its file was written to since it was opened."""
        try:
            self.tensor.check()
        except OSError as error:
            raise self._unreadable(error) from error

    def hand_on(self, at: int, room: Bytes, size: int, *, words: Words, own: Words) -> None:
        """The ``size`` bytes from byte ``at`` on are as ``room`` begins; of them ``words`` are
        others, ``own`` by the tensor's own deltas. Raises: OSError of the local disk.
        """
        staging = self.staging
        if staging.changes is not None:
            offset = self.tensor.span.offset + at
            staging.changes.change(self.file, offset, room, span=size, words=words)
        if self.recorder is not None:
            self.recorder.note(self.tensor.name, at, own, room.view("<u8")[own])
        staging.tally.through(done=size)

    def verified(self, published: str, own: str) -> None:
        """Compare ``published`` with what was, and note ``own``, the xxh3-128 of the new bytes.

        Raises: DeltaDamaged, LocalDamaged when the copy is what is wrong.
        """
        if published != self.last.checksum:
            raise self._why_wrong()
        self.staging.digests[self.tensor.name] = own

    def check_earlier(self) -> None:
        """Raises: LocalDamaged when the copy and its earlier deltas are not what they were."""
        earlier = self.deltas[: self.own_from]
        buffer = self._old()
        try:
            whole = fold(bytes_of(buffer), earlier) is not None
        except DeltaDamaged:
            whole = False
        if not whole:
            raise LocalDamaged(f"{earlier[-1].where}: what a pull kept of it is damaged")

    def _why_wrong(self) -> DeltaDamaged:
        """The version that is damaged."""
        return blame(bytes_of(self._old()), self.deltas)

    def _old(self) -> bytearray:
        """The old bytes. Raises: LocalDamaged, to tell a damaged copy from a damaged delta."""
        buffer, tensor = bytearray(self.length), self.tensor
        self.read(memoryview(buffer))
        known, seen = (
            self.staging.known.get(tensor.name),
            checksum(OWN_CHECKSUM, memoryview(buffer)),
        )
        if seen != known:
            raise LocalDamaged(
                f"{tensor.file.name}: tensor {tensor.name!r:.200} has the checksum {seen}, but the "
                f"last pull left {known}"
            )
        return buffer

    def _unreadable(self, error: OSError) -> LocalDamaged:
        return LocalDamaged(f"{self.tensor.file.name}: cannot be read ({error})")


def stage_one(one: OneTensor) -> None:
    """Change it, verify it, hand it on. Raises: DeltaDamaged, LocalDamaged, OSError."""
    try:
        _stage_one(one)
    except DeltaDamaged:
        if one.own_from:
            one.check_earlier()
        raise


def _stage_one(one: OneTensor) -> None:
    one.begin()
    if one.length <= _SHORT_BYTES:
        _at_once(one)
    elif not _in_few_calls(one):
        _in_steps(one)
    one.end()


def _at_once(one: OneTensor) -> None:
    room = chunk_room(one.length, at=one.tensor.span.offset)
    piece = room[: one.length]
    one.read(piece.data)
    old = piece.copy()
    for delta in one.deltas[: one.own_from]:
        delta.apply(piece)
    before = piece.copy() if one.own_from else old
    for delta in one.deltas[one.own_from :]:
        delta.apply(piece)
    kind = one.last.checksum_format
    published = checksum(kind, piece.data)
    one.verified(
        published, published if kind == OWN_CHECKSUM else checksum(OWN_CHECKSUM, piece.data)
    )
    own = different_words(before, piece)
    words = different_words(old, piece) if one.own_from else own
    one.hand_on(0, room, one.length, words=words, own=own)


def _in_few_calls(one: OneTensor) -> bool:
    """Where these can tell as much as is asked for; whether it was done."""
    told, alone = one.wants_words or one.recorder is not None, one.own_from == len(one.deltas) - 1
    # They tell of one change, and a journal wants to know of all.
    if told and (not alone or (one.wants_words and one.own_from)):
        return False
    if one.last.checksum_format != OWN_CHECKSUM:
        return False
    fused = Fused.of(one.tensor, one.deltas, memory=one.staging.memory, told=told)
    if fused is None:
        return False
    keeps = told or one.is_kept
    most = CHUNK_BYTES if one.wants_words else _FUSED_BYTES
    for at in range(0, one.length, most):
        size = min(most, one.length - at)
        kept = size if keeps else min(size, PASSING_BYTES)
        room = chunk_room(kept, at=one.tensor.span.offset + at)
        words = fused.through(room[:kept], size)
        if words is None:
            one.begin()
            return False  # steps say what is wrong
        one.hand_on(at, room, size, words=words, own=words)
    one.check_unchanged()
    found = fused.finish()
    one.verified(found, found)
    return True


def _in_steps(one: OneTensor) -> None:
    last, silent = one.last, _unheard(one)
    quiet, steps = _steps(one, silent)
    published, own_hash = new_hasher(last.checksum_format), new_hasher(OWN_CHECKSUM)
    for at in range(0, one.length, CHUNK_BYTES):
        size = min(CHUNK_BYTES, one.length - at)
        room = chunk_room(size, at=one.tensor.span.offset + at)
        piece = room[:size]
        one.read(piece.data, offset=at)
        for step in quiet:
            step.apply(piece)
        touched = [step.apply(piece) for step in steps]
        published.update(piece.data)
        if last.checksum_format != OWN_CHECKSUM:
            own_hash.update(piece.data)
        own = _any_of(touched[max(0, one.own_from - silent) :], size)
        one.hand_on(at, room, size, words=_any_of(touched, size) if one.own_from else own, own=own)
    for step in (*quiet, *steps):
        step.finish()
    found = published.hexdigest()
    one.verified(found, found if last.checksum_format == OWN_CHECKSUM else own_hash.hexdigest())


def _unheard(one: OneTensor) -> int:
    """How many of the deltas, the first ones, nobody has to hear of."""
    if one.wants_words:
        return 0
    return len(one.deltas) if one.staging.recorder is None else one.own_from


def _steps(one: OneTensor, silent: int) -> tuple[list[Steps], list[Steps]]:
    """The first ``silent`` deltas, which do not tell what they change, and the others."""
    deltas, length, memory = one.deltas, one.length, one.staging.memory
    among = len(deltas)
    quiet = untold(deltas[:silent], length, among=among, memory=memory)
    told = [piecewise(delta, length, among=among, memory=memory) for delta in deltas[silent:]]
    return list(quiet), told


def _any_of(touched: Sequence[Words], size: int) -> Words:
    """The words of ``size`` bytes that are in any of ``touched``, which sorting would find late."""
    if len(touched) <= 1:
        return touched[0] if touched else _NONE
    seen = np.zeros(whole_words(size) // WORD_BYTES, np.bool_)
    for words in touched:
        seen[words] = True
    return np.flatnonzero(seen)
