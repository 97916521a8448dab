"""What somebody else's pull has changed, for a server that shares a followed directory.

Only who pulls has seen both states. Whoever comes later finds the new one in the files, and gets
the old one back by the deltas in between: what was XORed once is XORed again.

Rules:

* The new bytes of a tensor have to be what the pull recorded, and the old ones what was recorded
  when they were committed; by which deltas it went is then of no importance.
* A commit waits for no network: this is for sources that are directories.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from hotswap.niceness import give_way
from hotswap.sparse.cache import PatchCache
from hotswap.sparse.origin import Base, Origin
from hotswap.sparse.recorder import Recorder
from hotswap.stream.blobs import Delta
from hotswap.stream.checksums import OWN_CHECKSUM, checksum
from hotswap.stream.encodings import Encoding
from hotswap.stream.errors import DeltaDamaged, LocalDamaged
from hotswap.stream.log import holding_in
from hotswap.stream.parallel import run_all
from hotswap.stream.source import Source
from hotswap.stream.stored import StoredTensor, StoredTensors
from hotswap.stream.words import different_words, whole_words

__all__ = ["TakenBack"]

_MAX_THREADS = 4
_REMEMBERED = 4

_Checksums = Mapping[str, str]


class TakenBack:
    """Finds what led from one commit to the next. One commit at a time, any thread."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._known: dict[Origin, _Checksums] = {}

    def __repr__(self) -> str:
        return f"<TakenBack from {self._source}, knows {len(self._known)}>"

    def note(self, origin: Origin) -> None:
        """What ``origin``'s directory holds is about to be committed; its lock is held. Blocks."""
        held = holding_in(Path(origin.directory))
        if held is None or held.log is not None or held.digest != origin.state_digest:
            return
        self._known.pop(origin, None)
        for oldest in list(self._known)[: 1 - _REMEMBERED]:
            del self._known[oldest]
        self._known[origin] = held.plain.tensors

    def keep_since(self, live: Origin | Base, wanted: Origin, patches: PatchCache) -> bool:
        """Leave in ``patches`` what leads from ``live`` to ``wanted``, which its directory holds;
        False when that cannot be found out.

        Blocks; the directory's lock is held. Raises: StreamError, OSError.
        """
        old = self._known.get(live) if isinstance(live, Origin) else None
        new = self._known.get(wanted)
        if not isinstance(live, Origin) or old is None or new is None or old.keys() != new.keys():
            return False
        with StoredTensors.at(Path(wanted.directory)) as stored:
            by_name = self._deltas(live.version, wanted.version, stored)
            if by_name is None or any(old[n] != new[n] for n in new.keys() - by_name.keys()):
                return False
            recorder = Recorder(patches, live)
            tasks = [
                (
                    stored.tensors[name].span.length,
                    partial(_note, stored.tensors[name], deltas, old[name], new[name], recorder),
                )
                for name, deltas in by_name.items()
            ]
            threads = min(_MAX_THREADS, os.cpu_count() or 1)
            with ThreadPoolExecutor(threads, "hotswap-changes", initializer=give_way) as pool:
                run_all(pool, tasks)
            recorder.keep(wanted)
        return True

    def _deltas(
        self, live: int, wanted: int, stored: StoredTensors
    ) -> Mapping[str, Sequence[Delta]] | None:
        """Those of each tensor, in order; None where they lead from somewhere else, are more than
        may be in memory, or cannot be taken back."""
        source = Source(self._source, names=stored.tensors.keys(), allowed=None)
        chain = source.chain(wanted, at_hand=[live])
        if chain.start != live or not chain.deltas or source.fitting(chain) != chain:
            return None
        if any(index.encoding is Encoding.OVERWRITE for index in chain.deltas):
            return None
        by_name = dict[str, list[Delta]]()
        for deltas in source.deltas(chain.deltas, stored.lengths):
            for name, delta in deltas.items():
                by_name.setdefault(name, []).append(delta)
        return by_name


def _note(
    tensor: StoredTensor, deltas: Sequence[Delta], before: str, after: str, recorder: Recorder
) -> None:
    length = tensor.span.length
    room = np.zeros(whole_words(length), np.uint8)
    new = room[:length]
    tensor.read_into(new.data)
    if checksum(OWN_CHECKSUM, new.data) != after:
        raise LocalDamaged(
            f"{tensor.file.name}: tensor {tensor.name!r:.200} is not what the last pull left; pull "
            "again"
        )
    old = new.copy()
    for delta in reversed(deltas):
        delta.apply(old)
    if checksum(OWN_CHECKSUM, old.data) != before:
        raise DeltaDamaged(
            f"{deltas[-1].where}: the deltas at the source do not lead back to what is live"
        )
    words = different_words(old, new)
    recorder.begin(tensor.name, length)
    recorder.note(tensor.name, 0, words, room.view("<u8")[words])
    recorder.end(tensor.name)
