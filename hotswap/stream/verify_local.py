"""A local checkpoint against the checksums that the last pull recorded of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hotswap.errors import UpdateRejected
from hotswap.stream.copy_check import check_tensors
from hotswap.stream.errors import LocalDamaged, without_advice
from hotswap.stream.lock import reading
from hotswap.stream.log import Holding, holding_in
from hotswap.stream.log_files import OpenLog
from hotswap.stream.own_files import changed_sizes
from hotswap.stream.place import local_directory
from hotswap.stream.progress import Progress, Tally
from hotswap.stream.small_files import small_faults
from hotswap.stream.state import Reserved, State
from hotswap.stream.stored import StoredTensors
from hotswap.stream.verified import Faults, Verified

__all__ = ["verify_local"]

_ADVICE = (
    '; pull the version again with --check ("check": true in /pull_weights), which makes the copy '
    "anew"
)


def verify_local(
    local: Path,
    *,
    threads: int | None = None,
    lock_timeout_s: float = 600.0,
    progress: Callable[[Progress], None] | None = None,
) -> Verified:
    """Read every tensor and file and compare it; pulls wait meanwhile.

    Raises: PullPending when a pull was cut short, LocalBusy when one runs for too long,
    LocalDamaged when the directory does not say what it holds.
    """
    local = local_directory(local, "the local checkpoint")
    tally, faults = Tally(progress), Faults()
    with reading(local, timeout_s=lock_timeout_s):
        held = _holding(local)
        state = held.state
        for fault in small_faults(local, state):
            faults.add(str(local), LocalDamaged(f"{local}: {fault}{_ADVICE}"))
        try:
            with (
                StoredTensors.at(local, with_log=True) as stored,
                OpenLog(held, stored.lengths, paths=Reserved(local)) as log,
            ):
                _check_names(local, stored, state, faults)
                with ThreadPoolExecutor(
                    threads or os.cpu_count(), thread_name_prefix="hotswap-verify"
                ) as pool:
                    check_tensors(
                        stored, log, state, faults=faults, pool=pool, tally=tally, advice=_ADVICE
                    )
        except UpdateRejected as error:
            faults.add(str(local), _as_damage(local, error))
    return Verified(
        path=str(local),
        versions=(state.number,),
        checks=faults.checks,
        checked_bytes=faults.checked_bytes,
        faults=faults.found,
    )


def _holding(local: Path) -> Holding:
    held = holding_in(local)
    if held is None:
        raise LocalDamaged(
            f"{local}: has no .weight_sync/state.json that a pull wrote, and nothing says which "
            "bytes it should hold; pull into it"
        )
    return held


def _as_damage(local: Path, error: UpdateRejected) -> UpdateRejected:
    """Whatever keeps a copy from being opened, no waiting mends it."""
    sizes = list(changed_sizes(Reserved(local)))
    if isinstance(error, LocalDamaged) and not sizes:
        return LocalDamaged(f"{error}{_ADVICE}")
    what = (
        "; ".join(sizes) or f"its files are not what the last pull left ({without_advice(error)})"
    )
    return LocalDamaged(f"{local}: {what}{_ADVICE}")


def _check_names(local: Path, stored: StoredTensors, state: State, faults: Faults) -> None:
    for name in sorted(stored.tensors.keys() ^ state.tensors.keys()):
        here = name in stored.tensors
        which = "was not there when the last pull ended" if here else "is gone"
        message = f"{local}: tensor {name!r:.200} {which}{_ADVICE}"
        faults.add(str(local), LocalDamaged(message), name)
