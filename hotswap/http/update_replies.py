"""What replies say of an update, of a chunk that waits for its commit, and of nothing at all."""

from __future__ import annotations

from collections.abc import Sequence

from hotswap.http.served import Served
from hotswap.types import CommitMode, LoadMode, UpdateReport
from hotswap.update_session import ChunkReport, UpdateSession

__all__ = ["chunk_body", "coverage_of", "nothing_body", "report_body", "staged_body"]

_SHOWN = 20
"""Names that the reply to a chunk lists of those that it lacks: most of them, each time."""


def report_body(report: UpdateReport) -> dict[str, object]:
    """What every successful update says of itself."""
    return {
        "success": True,
        "tensors_loaded": report.tensors_applied,
        "flushed_cache": report.flushed_cache,
        "entries_cleared": report.entries_cleared,
        "num_aborted_requests": report.num_aborted_requests,
        "num_paused_requests": report.num_paused_requests,
        "weight_version": report.stamp.version,
        "token_step": report.stamp.token_step,
        "weight_update_count": report.stamp.update_count,
        "weight_epoch": report.stamp.epoch,
        "elapsed_ms": report.elapsed_ms,
        "staged_ms": report.staged_ms,
        "paused_ms": report.paused_ms,
        "bytes": report.bytes_applied,
        "mode": report.commit_mode,
        "load_mode": report.load_mode,
        "elements_moved": report.elements_moved,
        "missing": report.missing,
        "unknown": report.unknown,
    }


def chunk_body(serving: Served, report: UpdateReport) -> dict[str, object]:
    """What an update says that was a push: how far its chunks have come, too."""
    return {
        **report_body(report),
        "missing": report.missing[:_SHOWN],
        "num_missing": len(report.missing),
        "coverage": coverage_of(serving),
        "update_id": None,
        "staged": False,
    }


def staged_body(serving: Served, session: UpdateSession, report: ChunkReport) -> dict[str, object]:
    """The reply to a chunk that is live only when its session is committed."""
    return {
        **_untouched(serving),
        "tensors_loaded": report.tensors,
        "elapsed_ms": report.elapsed_ms,
        "staged_ms": report.elapsed_ms,
        "bytes": report.bytes,
        "unknown": report.unknown,
        "update_id": session.update_id,
        "staged": True,
        "repeated": report.repeated,
    }


def nothing_body(serving: Served, session: UpdateSession | None) -> dict[str, object]:
    """The reply to a bucket without tensors."""
    return {
        **_untouched(serving),
        "update_id": None if session is None else session.update_id,
        "staged": session is not None,
    }


def coverage_of(serving: Served) -> dict[str, object] | None:
    """How far the chunks of a push have come; None while none is begun."""
    coverage = serving.commands.coverage
    if not coverage.begun:
        return None
    return {"covered": coverage.covered, "of": coverage.of, "version": coverage.version}


def _untouched(serving: Served) -> dict[str, object]:
    """The fields of an update, of which nothing has happened to the live weights."""
    stamp = serving.commands.stamp
    none: Sequence[str] = ()
    return {
        "success": True,
        "message": "Success",
        "tensors_loaded": 0,
        "flushed_cache": False,
        "entries_cleared": 0,
        "num_aborted_requests": 0,
        "num_paused_requests": 0,
        "weight_version": stamp.version,
        "token_step": stamp.token_step,
        "weight_update_count": stamp.update_count,
        "weight_epoch": stamp.epoch,
        "elapsed_ms": 0.0,
        "staged_ms": 0.0,
        "paused_ms": 0.0,
        "bytes": 0,
        "mode": CommitMode.FULL,
        "load_mode": LoadMode.STAGED,
        "elements_moved": 0,
        "missing": none,
        "num_missing": 0,
        "unknown": none,
        "coverage": coverage_of(serving),
    }
