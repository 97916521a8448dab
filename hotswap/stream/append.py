"""Appending versions to the log of a local checkpoint: its files stay as they are.

Rule: the new tensors are made in memory, piece by piece, and verified, while the blobs are
written, as they were published; once both is done, and they are durable, the log says so in one
step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from hotswap.sparse.cache import PatchCache
from hotswap.stream.apply import grouped
from hotswap.stream.blobs import Delta
from hotswap.stream.errors import LocalBusy
from hotswap.stream.in_files import OpenLocal, recording
from hotswap.stream.in_place import stage_changes
from hotswap.stream.layout import DeltaIndex
from hotswap.stream.log import LOG_FORMAT, Holding, Log, LoggedVersion
from hotswap.stream.log_files import write_version
from hotswap.stream.state import digest_of, read_text

__all__ = ["LogLimits", "append"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """How long a log may become before a pull writes it into the files instead.

    Each version of a log costs every reader the time to apply it, and disk: at most
    ``versions``, and ``share`` of the checkpoint's bytes.
    """

    versions: int = 8
    share: float = 0.25

    def half(self) -> LogLimits:
        """From when on a log is worth writing into the files when nobody waits for that."""
        return LogLimits(versions=self.versions // 2, share=self.share / 2)

    def allow(self, held: Holding, more: int, *, of_bytes: int) -> bool:
        """Whether ``more`` versions may be appended for a checkpoint of ``of_bytes``."""
        size_bytes = 0 if held.log is None else held.log.size_bytes
        return len(held.versions) + more <= self.versions and size_bytes <= self.share * of_bytes


def append(
    here: OpenLocal,
    indexes: Sequence[DeltaIndex],
    versions: Sequence[Mapping[str, Delta]],
    *,
    digest: str,
    source: str,
    patches: PatchCache | None,
) -> None:
    """Put ``versions``, the last of which has ``digest``, behind what is held.

    Raises: DeltaDamaged, LocalDamaged, LocalBusy, OSError.
    """
    local, written = here.local, list(here.held.versions)
    with recording(here, patches) as recorder:
        staging = here.staging(recorder=recorder)
        write = partial(_write, here, indexes, versions, digest, written)
        try:
            stage_changes(here.stored, grouped(versions), staging, beside=write)
        except BaseException:
            with suppress(OSError, LocalBusy):
                local.drop_unnamed()
            raise
        with local.tally.phase("log"):
            before = {} if here.held.log is None else here.held.log.tensors
            local.append(
                Log(
                    format=LOG_FORMAT,
                    on=digest_of(read_text(local.paths.state)) or "",
                    checkpoint_source_dir=source,
                    versions=tuple(written),
                    tensors={**before, **staging.digests},
                )
            )


def _write(
    here: OpenLocal,
    indexes: Sequence[DeltaIndex],
    versions: Sequence[Mapping[str, Delta]],
    digest: str,
    written: list[LoggedVersion],
) -> None:
    """Make the blobs durable, in files that nothing names yet. Raises: OSError."""
    local = here.local
    local.begin_log()
    for number, (index, deltas) in enumerate(zip(indexes, versions, strict=True), 1):
        known = digest if number == len(indexes) else None
        one = write_version(local.paths, local.disk, index, deltas, digest=known)
        local.tally.through(written=one.size_bytes)
        written.append(one)
    local.disk.sync_directory(local.paths.log)
