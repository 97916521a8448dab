"""A local checkpoint from the base or a full version, the deltas after it applied on the way."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass

from hotswap.stream.aggregate import aggregate_deltas, aggregate_index
from hotswap.stream.apply import grouped
from hotswap.stream.base_check import base_blamed
from hotswap.stream.blobs import Delta
from hotswap.stream.chain import Chain
from hotswap.stream.errors import DeltaDamaged, StreamError
from hotswap.stream.job import Job, check_unchanged
from hotswap.stream.layout import spelled
from hotswap.stream.report import PullMode, PullReport
from hotswap.stream.seed import Seeding, seed
from hotswap.stream.shapes import Shapes
from hotswap.stream.source import Source, blob_bytes
from hotswap.stream.state import FORMAT, State
from hotswap.stream.stored import StoredTensors

__all__ = ["new_copy"]

_log = logging.getLogger("hotswap.pull")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """``shortcut``: the aggregate's deltas, from the base to where ``chain`` starts."""

    chain: Chain
    shortcut: Mapping[str, Delta] | None = None

    @property
    def seed_version(self) -> int:
        return self.chain.start if self.shortcut is None else 0


def new_copy(job: Job, reason: str | None, *, at_once: bool = False) -> PullReport:
    """Put a new copy of the target, or of a version on the way to it, in the old one's place.

    ``reason``: why, if there was one. ``at_once``: of the target, or none.

    Raises: StreamError, OSError of the local disk; the old copy is then as it was, or the
    journal of the new one is durable.
    """
    job.local.check_free()
    with job.opened_base() as base:
        source = job.source(base.lengths)
        way = _shortcut(job, source, base) if job.target else None
        if way is not None:
            try:
                _check_way(job, way, at_once=at_once)
                return _copied(job, source, base, way, reason)
            except DeltaDamaged as error:
                _log.warning("the aggregate is skipped: %s", error)
        chain = source.fitting(source.chain(job.target))
        way = _Way(chain=chain)
        _check_way(job, way, at_once=at_once)
        return _copied(job, source, base, way, reason)


def _check_way(job: Job, way: _Way, *, at_once: bool) -> None:
    if at_once and way.chain.target != job.target:
        raise StreamError(
            f"the versions up to {job.target} are more than memory is taken for at once"
        )


def _shortcut(job: Job, source: Source, base: StoredTensors) -> _Way | None:
    """The aggregate and what follows it, when the target is reached over it."""
    allowed = job.places.source_allowed
    index = aggregate_index(source.path, target=job.target, lengths=base.lengths, allowed=allowed)
    if index is None:
        return None
    chain = source.chain(job.target, at_hand={index.version})
    if chain.start != index.version:
        return None
    deltas = aggregate_deltas(source.path, index, lengths=base.lengths, allowed=allowed)
    if deltas is None:
        return None
    job.local.tally.through(read=blob_bytes(deltas))
    if not source.agrees(index.version, deltas, base):
        # Of an earlier run in the same directory, whose version has been published again.
        _log.warning("the aggregate is skipped: version %d is another one", index.version)
        return None
    return _Way(chain=source.fitting(chain), shortcut=deltas)


def _copied(
    job: Job, source: Source, base: StoredTensors, way: _Way, reason: str | None
) -> PullReport:
    target = way.chain.target
    digest = source.digest(target) if target else None
    opened = source.full(way.seed_version) if way.seed_version else nullcontext(base)
    try:
        with opened as begin:
            if way.seed_version:
                Shapes.seen_in(base).check(begin)
            with job.local.tally.phase("read"):
                versions = source.deltas(way.chain.deltas, begin.lengths)
            if way.shortcut is not None:
                versions.insert(0, way.shortcut)
            seeding = Seeding(
                incoming=job.local.begin_incoming(),
                disk=job.local.disk,
                pool=job.local.pool,
                tally=job.local.tally,
            )
            try:
                files = seed(begin, grouped(versions), (base, begin), seeding)
            except DeltaDamaged as error:
                if way.seed_version or way.shortcut is not None:
                    raise
                raise _told_of_base(job, error, base, versions[0]) from error
        if digest is not None:
            check_unchanged(source, target, digest)
        state = State(
            version=spelled(target),
            format=FORMAT,
            base_version=spelled(way.seed_version),
            base_checkpoint_dir=job.base_path,
            base_digest=base.digest,
            checkpoint_source_dir=job.source_path if target else None,
            index_digest=digest,
            files=files,
            tensors=seeding.digests,
        )
        again = job.local.paths.state.exists()
        job.local.replace(state)
    except BaseException:
        _clear_incoming(job)
        raise
    mode = PullMode.RESEED if again else PullMode.SEED
    return job.report(mode, way.chain, aggregate=way.shortcut is not None, reason=reason)


def _told_of_base(
    job: Job, error: DeltaDamaged, base: StoredTensors, first: Mapping[str, Delta]
) -> StreamError:
    held = job.local.held
    made_of = None if held is None else held.state.base_checkpoint_dir
    return base_blamed(error, base, first, path=job.base_path, made_of=made_of)


def _clear_incoming(job: Job) -> None:
    """Give the room of a copy that failed back, unless a journal needs it."""
    if not job.local.paths.is_pending:
        with suppress(OSError):
            job.local.begin_incoming()
