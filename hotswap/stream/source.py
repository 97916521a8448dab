"""A directory of published versions, looked at afresh each time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import xxhash

from hotswap.stream.at_once import each_of
from hotswap.stream.blobs import Delta, locate_deltas, read_deltas
from hotswap.stream.chain import Chain, open_version, resolve
from hotswap.stream.checksums import checksum
from hotswap.stream.errors import SourceNotReady, raised_as
from hotswap.stream.gone import gone
from hotswap.stream.header import header_room
from hotswap.stream.layout import DeltaIndex, directory_of, read_index
from hotswap.stream.no_source import no_source
from hotswap.stream.place import Place
from hotswap.stream.source_file import header_text, size_of
from hotswap.stream.stored import StoredTensor, StoredTensors, is_weight_file, opened_seed
from hotswap.weights.readable import AnyFolder
from hotswap.weights.roots import Allowed

__all__ = ["Source", "blob_bytes"]

_FOLD_BYTES = 512 * 2**20
"""Of all versions that are folded at once; they are in memory, compressed."""


class Source:
    """Versions below ``path``; ``names`` are the tensors that they can be about.

    ``count`` is told how many bytes of deltas were read.
    """

    def __init__(
        self,
        path: Place,
        *,
        names: Collection[str],
        allowed: Allowed | None,
        count: Callable[[int], None] | None = None,
    ) -> None:
        self.path = path
        self.names = names
        self.allowed = allowed
        self._count = count

    def __repr__(self) -> str:
        return f"<Source {self.path}>"

    def chain(self, target: int, *, at_hand: Collection[int] = ()) -> Chain:
        """How to reach ``target``.

        Raises: as ``resolve``; VersionMissing also for a target that is gone, SourceUnusable for
        what can be no source.
        """
        try:
            return resolve(target, at_hand=at_hand, open_one=self._open, names=self.names)
        except SourceNotReady as error:
            if not error.absent:
                raise
            unusable = no_source(self.path)
            if unusable is not None:
                raise unusable from error
            told = gone(
                error,
                self.path,
                target,
                at_hand=at_hand,
                open_one=self._open,
                names=self.names,
            )
            if told is error:
                raise
            raise told from error

    def fitting(self, chain: Chain) -> Chain:
        """As many versions from the beginning of ``chain`` as memory is taken for, at least one.

        Raises: SourceNotReady, VersionMalformed.
        """
        taken, size_bytes = list[DeltaIndex](), 0
        for index in chain.deltas if len(chain.deltas) > 1 else ():
            with self._open(index.version) as folder:
                size_bytes += sum(size_of(folder, name) for name in set(index.file_of.values()))
            if taken and size_bytes > _FOLD_BYTES:
                return Chain(start=chain.start, deltas=tuple(taken))
            taken.append(index)
        return chain

    def deltas(
        self, indexes: Sequence[DeltaIndex], lengths: Mapping[str, int]
    ) -> list[Mapping[str, Delta]]:
        """The deltas of each version, in memory, for tensors of ``lengths`` bytes.

        Raises: SourceNotReady, VersionMalformed.
        """
        return each_of(self.path, indexes, lambda index: self._deltas(index, lengths))

    def full(self, version: int) -> StoredTensors:
        """A full version, open. Raises: SourceNotReady, VersionMalformed."""
        directory = directory_of(self.path, version)
        with raised_as(SourceNotReady), self._open(version) as folder:
            if not any(map(is_weight_file, folder.names())):
                # Publishers make the directory first: an empty one is not about a full version.
                raise SourceNotReady(
                    f"{directory}: version {version} is not published (yet), neither an index nor "
                    "weights are there; pull again once its publisher has written it"
                )
        # With its times: unlike deltas it has no checksums by which to tell it from another one.
        return opened_seed(directory, allowed=self.allowed, wrong=SourceNotReady, timed=True)

    def agrees(self, version: int, deltas: Mapping[str, Delta], base: StoredTensors) -> bool:
        """Whether ``deltas`` on ``base``, another way to ``version``, give the tensors that it
        changes the bytes that it gives them itself; also when it is gone. Reads headers, and of
        ``base`` what ``deltas`` leave as it is.

        False for a full version, which is the better way, and where checksums are of two kinds.
        """
        try:
            with self._open(version) as folder:
                index = read_index(folder, version=version, names=self.names)
                if index is None:
                    return False
                own = locate_deltas(folder, index, base.lengths)
        except SourceNotReady:
            return True
        there = {name: (d.checksum_format, d.checksum) for name, d in deltas.items()}
        for name, blob in own.items():
            kind = index.checksum_format
            seen = there.get(name) or (kind, _checksum_of(base.tensors[name], kind))
            if seen != (kind, blob.checksum):
                return False
        return True

    def digest(self, version: int) -> str:
        """What tells ``version`` from another one of that number: index and headers, for a full
        one the files' times too.

        Raises: SourceNotReady, VersionMalformed and what else reading an index raises.
        """
        with self._open(version) as folder:
            index = read_index(folder, version=version, names=self.names)
            if index is not None:
                return _digest(folder, index, header_room(self.names))
        with self.full(version) as stored:
            return stored.digest

    def _open(self, version: int) -> AnyFolder:
        return open_version(self.path, version, self.allowed)

    def _deltas(self, index: DeltaIndex, lengths: Mapping[str, int]) -> Mapping[str, Delta]:
        with self._open(index.version) as folder:
            now = read_index(folder, version=index.version, names=self.names)
            if now is None or now.text != index.text:
                raise SourceNotReady(
                    f"{folder.path}: its index changed while the version was read; pull again"
                )
            deltas = read_deltas(folder, index, lengths)
        if self._count is not None:
            self._count(blob_bytes(deltas))
        return deltas


def _checksum_of(tensor: StoredTensor, kind: str) -> str:
    content = np.empty(tensor.span.length, np.uint8)
    try:
        tensor.read_into(content.data)
    except OSError as error:
        raise SourceNotReady(f"{tensor.file.name}: cannot be read ({error}); pull again") from error
    return checksum(kind, content.data)


def blob_bytes(deltas: Mapping[str, Delta]) -> int:
    """How long the blobs are together."""
    return sum(len(delta.blob) for delta in deltas.values())


def _digest(folder: AnyFolder, index: DeltaIndex, room: int) -> str:
    digest = xxhash.xxh3_128(index.text)
    for file in sorted(set(index.file_of.values())):
        digest.update(header_text(folder, file, at_most=room))
    return digest.hexdigest()
