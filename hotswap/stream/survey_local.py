"""What a local checkpoint says of itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hotswap.errors import UpdateRejected
from hotswap.stream.errors import LocalBusy, LocalDamaged, StreamError, without_advice
from hotswap.stream.journal import JournalReader
from hotswap.stream.lock import reading
from hotswap.stream.log import Holding, holding_in
from hotswap.stream.log_files import OpenLog
from hotswap.stream.place import local_directory
from hotswap.stream.state import Reserved
from hotswap.stream.stored import StoredTensors

__all__ = ["LocalSurvey", "is_local", "survey_local"]

_WAIT_S = 1.0
"""How long for a pull that writes, before it is said that one does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSurvey:
    """``version`` and what it was made from; None where nothing trustworthy says so.

    The files are at ``plain_version``, and ``log_versions``, of ``log_bytes``, are beside them.

    ``base_version`` is the full version that the copy began with, 0 the base. ``unfinished``
    is the version that a pull was writing when it was cut short; the next pull finishes it.
    ``trouble`` is why the next pull would seed it again, or nobody should read it now.
    """

    local: str
    version: int | None = None
    base_version: int | None = None
    base_checkpoint_dir: str | None = None
    checkpoint_source_dir: str | None = None
    files: int = 0
    tensors: int = 0
    size_bytes: int = 0
    plain_version: int | None = None
    log_versions: tuple[int, ...] = ()
    log_bytes: int = 0
    unfinished: int | None = None
    trouble: str | None = None


def is_local(directory: Path) -> bool:
    """Whether pulls keep ``directory``."""
    return Reserved(Path(directory)).home.is_dir()


def survey_local(local: Path) -> LocalSurvey:
    """Look at the state and at headers, without reading weights.

    Pulls are not kept waiting: the lock is taken only where something looks wrong, which it may
    while one writes.
    """
    local = local_directory(local, "the local checkpoint")
    seen = _seen(local)
    if seen.trouble is None:
        return seen
    try:
        with reading(local, timeout_s=_WAIT_S):
            return _seen(local)
    except LocalBusy:
        trouble = "a pull is at work here, or holds it: look again when that is done"
        return replace(seen, trouble=f"{trouble} ({seen.trouble})")
    except StreamError:  # which is what the survey says
        return _seen(local)


def _seen(local: Path) -> LocalSurvey:
    paths = Reserved(local)
    held = holding_in(local)
    unfinished, trouble = _unfinished(paths)
    if held is None:
        return LocalSurvey(
            local=str(local),
            unfinished=unfinished,
            trouble=trouble or f"{paths.state}: is not there, or not what a pull writes",
        )
    state = held.state
    tensors, size, wrong = _there(local, held)
    return LocalSurvey(
        local=str(local),
        version=state.number,
        base_version=int(state.base_version),
        base_checkpoint_dir=state.base_checkpoint_dir,
        checkpoint_source_dir=state.checkpoint_source_dir,
        files=len(state.files),
        tensors=tensors,
        size_bytes=size,
        plain_version=held.plain.number,
        log_versions=tuple(int(version.version) for version in held.versions),
        log_bytes=0 if held.log is None else held.log.size_bytes,
        unfinished=unfinished,
        trouble=trouble or wrong,
    )


def _unfinished(paths: Reserved) -> tuple[int | None, str | None]:
    if not paths.is_pending:
        return None, None
    cut = "a pull was cut short, and the files may be of two versions; pull again"
    try:
        journal = JournalReader(paths.journal)
    except (LocalDamaged, OSError) as error:
        return None, f"{cut} ({error})"
    journal.close()
    return journal.outcome.state.number, cut


def _there(local: Path, held: Holding) -> tuple[int, int, str | None]:
    """Tensors and bytes of weights that are there, and what is wrong with them."""
    try:
        with StoredTensors.at(local, with_log=True) as stored:
            size = sum(file.file.size_bytes for file in stored.files.values())
            different = len(stored.tensors.keys() ^ held.plain.tensors.keys())
            wrong = f"{different} tensors are not those that the last pull left"
            return (
                len(stored.tensors),
                size,
                wrong if different else _log_trouble(local, held, stored),
            )
    except UpdateRejected as error:
        return 0, 0, without_advice(error)


def _log_trouble(local: Path, held: Holding, stored: StoredTensors) -> str | None:
    try:
        OpenLog(held, stored.lengths, paths=Reserved(local)).close()
    except LocalDamaged as error:
        return str(error)
    return None
