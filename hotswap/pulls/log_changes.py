"""What a log changes since one of its versions, for live weights that are at it.

Whoever pulled: another process, or this one before it forgot.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from hotswap.niceness import give_way
from hotswap.sparse.cache import PatchCache
from hotswap.sparse.origin import Base, Origin
from hotswap.sparse.recorder import Recorder
from hotswap.stream.blobs import Delta
from hotswap.stream.gap_memory import LOGGED
from hotswap.stream.in_place import InPlace, stage_changes
from hotswap.stream.log import Holding
from hotswap.stream.log_files import OpenLog
from hotswap.stream.origin import base_of
from hotswap.stream.progress import Tally
from hotswap.stream.state import Reserved
from hotswap.stream.stored import StoredTensors
from hotswap.weights.roots import Allowed

__all__ = ["LogChanges"]

_MAX_THREADS = 4


class LogChanges:
    """The versions of the log of ``directory``, whose lock is held for as long as this is used.

    ``origin`` is what the directory holds.
    """

    def __init__(
        self, directory: Path, held: Holding, origin: Origin, *, allowed: Allowed | None
    ) -> None:
        self._directory = directory
        self._held = held
        self._origin = origin
        self._allowed = allowed

    def __repr__(self) -> str:
        return f"<LogChanges to {self._origin}>"

    def keep_since(self, live: Origin | Base, patches: PatchCache) -> bool:
        """Leave in ``patches`` what leads from ``live`` to what is held; False when nothing does.

        Every tensor that changed is made and verified. Blocks. Raises: UpdateRejected (of it
        LocalDamaged), OSError.
        """
        before = next((one for one in self._origins() if one.is_as(live)), None)
        if before is None:
            return False
        with (
            StoredTensors.at(self._directory, allowed=self._allowed, with_log=True) as stored,
            OpenLog(
                self._held,
                stored.lengths,
                paths=Reserved(self._directory),
                allowed=self._allowed,
            ) as log,
            ThreadPoolExecutor(
                min(_MAX_THREADS, os.cpu_count() or 1), "hotswap-changes", initializer=give_way
            ) as pool,
        ):
            recorder = Recorder(patches, before)

            def earlier(name: str) -> Sequence[Delta]:
                return [delta for delta in log.deltas(name) if delta.version <= before.version]

            later = {
                name: [delta for delta in log.deltas(name) if delta.version > before.version]
                for name in log.names
            }
            staging = InPlace(
                changes=None,
                pool=pool,
                tally=Tally(),
                known=self._held.plain.tensors,
                recorder=recorder,
                earlier=earlier,
                memory=LOGGED,
            )
            stage_changes(stored, {name: of for name, of in later.items() if of}, staging)
            recorder.keep(self._origin)
        return True

    def _origins(self) -> Iterator[Origin]:
        """What the directory held when its log had no version yet, one, two, but not all."""
        log, plain = self._held.log, self._held.plain
        if log is None:
            return
        known = [(plain.number, plain.index_digest)]
        known += [(int(version.version), version.index_digest) for version in log.versions[:-1]]
        for (version, index_digest), digest in zip(known, log.digests(), strict=False):
            yield replace(
                self._origin,
                version=version,
                index_digest=index_digest,
                state_digest=digest,
                base=base_of(plain) if version == plain.number else None,
            )
