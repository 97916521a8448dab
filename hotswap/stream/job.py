"""What every step of one pull is given."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hotswap.errors import UpdateRejected
from hotswap.sparse.cache import PatchCache
from hotswap.stream.append import LogLimits
from hotswap.stream.blobs import Delta
from hotswap.stream.chain import Chain
from hotswap.stream.errors import BaseChanged, SourceNotReady
from hotswap.stream.local import LocalCheckpoint
from hotswap.stream.log import Holding
from hotswap.stream.look import FirstLook
from hotswap.stream.place import real_name
from hotswap.stream.places import Places
from hotswap.stream.report import PullMode, PullReport
from hotswap.stream.source import Source
from hotswap.stream.stored import StoredTensors

__all__ = ["Job", "check_unchanged", "read_unchanged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One pull of ``target``, with the local checkpoint's lock held.

    ``base_digest`` is that of the base when it was recorded; None when it never was.
    ``patches`` gets what changed, for an update that follows. ``limits`` are those of the log
    that deltas go to, None where they go into the files, with ``copies`` into second ones.
    ``check``: a copy is read before it is relied on.
    """

    places: Places
    target: int
    local: LocalCheckpoint
    look: FirstLook
    base_digest: str | None = None
    patches: PatchCache | None = None
    limits: LogLimits | None = None
    copies: bool = False
    check: bool = False

    def is_to_fold(self, held: Holding) -> bool:
        """Whether versions lie beside the files that this pull is to write into them."""
        return self.limits is None and held.log is not None

    @property
    def base_path(self) -> str:
        """The base as states name it."""
        return os.path.realpath(self.places.base)

    @property
    def source_path(self) -> str:
        """The source as states name it."""
        return real_name(self.places.source)

    def opened_base(self) -> StoredTensors:
        """The base, open. Raises: BaseChanged when it is gone, or not the one that was recorded."""
        try:
            base = StoredTensors.at(self.places.base, timed=True)
        except UpdateRejected as error:
            other = "or put back" if error.retryable else "put back"
            changed = BaseChanged(
                f"the base checkpoint, which is version 0, cannot be read: {error}; {other} what "
                "the server was started with"
            )
            changed.retryable = error.retryable
            raise changed from error
        if self.base_digest not in (None, base.digest):
            base.close()
            raise BaseChanged(
                f"{self.base_path}: the base checkpoint, which is version 0, is not what it was "
                "when the server was started (a file, its time or the index is another); put it "
                "back, or restart the server, which then records it anew"
            )
        return base

    def source(self, names: Collection[str]) -> Source:
        """The source, for a checkpoint of tensors ``names``; the first look waits for its pre-read.

        Raises: SourceNotReady when that failed. Version 0 needs no source, and no look at one.
        """
        if self.target:
            if self.look.due:
                with self.local.tally.phase("pre_read"):
                    self.look.take()
            self.look.take()
        return Source(
            self.places.source,
            names=names,
            allowed=self.places.source_allowed,
            count=lambda size: self.local.tally.through(read=size),
        )

    def report(
        self,
        mode: PullMode,
        chain: Chain,
        *,
        aggregate: bool = False,
        reason: str | None = None,
    ) -> PullReport:
        """What ``chain`` did and cost."""
        return PullReport(
            mode=mode,
            version=chain.target,
            start=chain.start,
            versions=tuple(index.version for index in chain.deltas),
            aggregate=aggregate,
            reason=reason,
            read_bytes=self.local.tally.read_bytes,
            written_bytes=self.local.tally.written_bytes,
            seconds=dict(self.local.tally.seconds),
        )


def read_unchanged(
    source: Source, chain: Chain, lengths: Mapping[str, int]
) -> tuple[list[Mapping[str, Delta]], str]:
    """The deltas of ``chain``, and the digest of its target, which did not change meanwhile.

    Raises: SourceNotReady when it did, and what reading raises.
    """
    before = source.digest(chain.target)
    versions = source.deltas(chain.deltas, lengths)
    check_unchanged(source, chain.target, before)
    return versions, before


def check_unchanged(source: Source, version: int, digest: str) -> None:
    """Raises: SourceNotReady when ``version`` is not what ``digest`` was taken of."""
    if source.digest(version) != digest:
        raise SourceNotReady(
            f"{source.path}: version {version} was published again while it was read; pull again"
        )
