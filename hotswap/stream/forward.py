"""One pull, with the lock held: what is there, what is missing, and the shortest way."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from hotswap.errors import UpdateRejected
from hotswap.stream.append import append
from hotswap.stream.apply import grouped
from hotswap.stream.base_check import base_blamed
from hotswap.stream.blobs import Delta
from hotswap.stream.chain import Chain
from hotswap.stream.copy_check import refuse_damage
from hotswap.stream.errors import (
    DeltaDamaged,
    LocalDamaged,
    SourceNotReady,
    StreamError,
    without_advice,
)
from hotswap.stream.in_files import OpenLocal, write_in_files
from hotswap.stream.job import Job, read_unchanged
from hotswap.stream.layout import spelled
from hotswap.stream.log import Holding
from hotswap.stream.new_copy import new_copy
from hotswap.stream.report import PullMode, PullReport
from hotswap.stream.source import Source
from hotswap.stream.state import State
from hotswap.stream.stored import StoredTensors
from hotswap.stream.suspect import clear_suspicion, is_suspect

__all__ = ["bring_forward"]

_log = logging.getLogger("hotswap.pull")


def bring_forward(job: Job) -> PullReport:
    """Finish what is unfinished, then reach the target. Raises: StreamError, OSError.

    Versions that are too large to be in memory together are folded in several steps, each of
    which leaves a whole version. A copy that one of them finds damaged begins anew, once.
    """
    report, anew = _step(job, check=job.check)
    clear_suspicion(job.local.paths, job.local.disk)
    while report.version != job.target:
        later, again = _step(job)
        if again and anew:
            raise LocalDamaged(
                f"{later.reason}; and so was one that was made anew: see to the disk"
            )
        anew |= again
        if again:
            report = later
            continue
        if later.version <= report.version:
            raise SourceNotReady(
                f"{job.places.source}: was published again while it was pulled; pull again"
            )
        report = _together(report, later)
    return report


def _together(first: PullReport, later: PullReport) -> PullReport:
    """``later`` counts bytes and seconds of both already, and versions of a log once more."""
    more = tuple(version for version in later.versions if version > first.version)
    return replace(
        first,
        mode=PullMode.FOLD if first.mode is PullMode.DELTA else first.mode,
        version=later.version,
        versions=first.versions + more,
        read_bytes=later.read_bytes,
        written_bytes=later.written_bytes,
        seconds=later.seconds,
    )


def _step(job: Job, *, check: bool = False) -> tuple[PullReport, bool]:
    """One step, and whether it began anew because what was held turned out to be of no use."""
    recovered = job.local.recover()
    if not job.copies:
        job.local.drop_copies()
    held = job.local.held
    if held is None:
        reason = "its state is not to be trusted" if job.local.paths.state.exists() else None
        return new_copy(job, reason), False
    reason = _why_anew(job, held.state)
    if reason is not None:
        return new_copy(job, reason), False
    try:
        report = _in_place(job, held, recovered, check=check or is_suspect(job.local.paths, held))
    except LocalDamaged as error:
        _log.warning("%s; it is seeded again", error)
        return _mended(job, str(error)), True
    except DeltaDamaged as error:
        return _from_the_beginning(job, held.state, error), True
    if report is None:
        return new_copy(job, "a full version is on the way to the target"), False
    return report, False


def _from_the_beginning(job: Job, state: State, error: DeltaDamaged) -> PullReport:
    """What does not fit what is held may fit what it was published on.

    A version below the one that is held may have been published again since, and shows nowhere
    else. Raises: DeltaDamaged when it fits that neither, or nobody can tell; nothing has changed.
    """
    if not state.number:
        raise error  # it was put on the beginning
    seen = without_advice(error)
    _log.warning("%s; a new copy is tried", seen)
    try:
        return new_copy(job, seen, at_once=True)
    except DeltaDamaged:
        raise error from None
    except (StreamError, OSError) as other:
        raise DeltaDamaged(
            f"{error}; or, if a version before it was published again since it was pulled, "
            f"pull into another directory (no new copy could be tried here: {other})"
        ) from error


def _mended(job: Job, reason: str) -> PullReport:
    try:
        # Written down first: whatever happens next, nobody takes the copy for a whole one.
        job.local.condemn()
        return new_copy(job, reason)
    except StreamError as error:
        raise _not_mended(reason, error, retryable=error.retryable) from error
    except OSError as error:
        raise _not_mended(reason, error, retryable=False) from error


def _not_mended(reason: str, error: Exception, *, retryable: bool) -> LocalDamaged:
    both = LocalDamaged(f"{reason}; and it could not be seeded again: {error}")
    both.retryable = retryable
    return both


def _why_anew(job: Job, state: State) -> str | None:
    """Why a whole copy is of no use as a beginning; None when it is of use."""
    if job.target < state.number:
        return f"version {job.target} is behind the applied {state.number}"
    if state.base_checkpoint_dir != job.base_path:
        return f"it was made from the base {state.base_checkpoint_dir}"
    if _base_digest(job) not in (None, state.base_digest):
        return "the base checkpoint was changed"
    return _why_another_stream(job, state) if state.number else None


def _why_another_stream(job: Job, state: State) -> str | None:
    if state.checkpoint_source_dir != job.source_path:
        return f"it was made from the source {state.checkpoint_source_dir}"
    if _published(job, state) not in (None, state.index_digest):
        return f"another version {state.number} was published since"
    return None


def _base_digest(job: Job) -> str | None:
    """None when the base cannot be looked at, which is no reason to do without a copy.

    What was recorded counts: a base that was changed since is no reason either.
    """
    if job.base_digest is not None:
        return job.base_digest
    try:
        with StoredTensors.at(job.places.base, timed=True) as base:
            return base.digest
    except UpdateRejected as error:
        _log.info("the base cannot be compared: %s", error)
        return None


def _published(job: Job, state: State) -> str | None:
    """None when the applied version is gone from the source, as trainers remove them."""
    try:
        return job.source(state.tensors).digest(state.number)
    except UpdateRejected as error:
        _log.info("version %d cannot be compared: %s", state.number, error)
        return None


def _in_place(job: Job, held: Holding, recovered: bool, *, check: bool) -> PullReport | None:
    """None when the way to the target does not lead over what is applied."""
    state, local, allowed = held.state, job.local, job.places.local_allowed
    with (
        local.open(held.plain, allowed=allowed) as stored,
        local.open_log(held, stored, allowed=allowed) as log,
    ):
        if check:
            refuse_damage(stored, log, state, pool=local.pool, tally=local.tally)
        source = job.source(state.tensors)
        chain = Chain(start=state.number, deltas=())
        if job.target != state.number:
            chain = source.chain(job.target, at_hand={state.number})
        if chain.start != state.number:
            return None
        if not chain.deltas and not job.is_to_fold(held):
            mode = PullMode.RECOVERED if recovered else PullMode.NOOP
            return job.report(mode, chain)
        here = OpenLocal(local=local, held=held, stored=stored, log=log)
        return _apply(job, here, source, source.fitting(chain))


def _apply(job: Job, here: OpenLocal, source: Source, chain: Chain) -> PullReport:
    """Put the deltas of ``chain`` behind the log, or it and them into the files."""
    state, lengths = here.held.state, here.stored.lengths
    versions, digest = list[Mapping[str, Delta]](), state.index_digest
    if chain.deltas:
        with job.local.tally.phase("read"):
            versions, digest = read_unchanged(source, chain, lengths)
    try:
        return _written(job, here, chain, versions, digest)
    except DeltaDamaged as error:
        if state.number or not versions:
            raise
        # What they were put on is the base, as it was copied.
        raise base_blamed(error, here.stored, versions[0], path=job.base_path) from error


def _written(
    job: Job,
    here: OpenLocal,
    chain: Chain,
    versions: Sequence[Mapping[str, Delta]],
    digest: str | None,
) -> PullReport:
    state = here.held.state
    limits, more = job.limits, len(chain.deltas)
    of_bytes = sum(here.stored.lengths.values())
    if limits is not None and limits.allow(here.held, more, of_bytes=of_bytes):
        append(
            here,
            chain.deltas,
            versions,
            digest=digest or "",
            source=job.source_path,
            patches=job.patches,
        )
        return job.report(PullMode.LOG, chain)
    after = msgspec.structs.replace(
        state,
        version=spelled(chain.target),
        checkpoint_source_dir=job.source_path if chain.target else state.checkpoint_source_dir,
        index_digest=digest,
    )
    write_in_files(here, grouped(versions), after, patches=job.patches, copies=job.copies)
    whole = Chain(start=here.held.plain.number, deltas=(*here.log.indexes, *chain.deltas))
    mode = PullMode.DELTA if len(whole.deltas) == 1 else PullMode.FOLD
    return job.report(mode, whole)
