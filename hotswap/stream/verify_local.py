"""A local checkpoint against the checksums that the last pull recorded of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from hotswap.errors import UpdateRejected
from hotswap.stream.blobs import Delta
from hotswap.stream.checksums import OWN_CHECKSUM, checksum, new_hasher
from hotswap.stream.errors import LocalDamaged
from hotswap.stream.lock import reading
from hotswap.stream.log import Holding, holding_in
from hotswap.stream.log_files import OpenLog
from hotswap.stream.parallel import run_all
from hotswap.stream.progress import Progress, Tally
from hotswap.stream.state import Reserved, State
from hotswap.stream.stored import StoredTensor, StoredTensors
from hotswap.stream.verified import Faults, Verified

__all__ = ["verify_local"]

_PIECE_BYTES = 16 * 2**20


def verify_local(
    local: Path,
    *,
    threads: int | None = None,
    lock_timeout_s: float = 600.0,
    progress: Callable[[Progress], None] | None = None,
) -> Verified:
    """Read every tensor and compare it; pulls wait meanwhile.

    Raises: PullPending when a pull was cut short, LocalBusy when one runs for too long,
    LocalDamaged when the directory does not say what it holds.
    """
    local, tally, faults = Path(local), Tally(progress), Faults()
    with reading(local, timeout_s=lock_timeout_s):
        held = _holding(local)
        state = held.state
        try:
            with (
                StoredTensors.at(local, with_log=True) as stored,
                OpenLog(held, stored.lengths, paths=Reserved(local)) as log,
            ):
                _check_names(local, stored, state, faults)
                _check_tensors(stored, log, state, faults, tally, threads)
        except UpdateRejected as error:
            faults.add(str(local), error)
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


def _check_names(local: Path, stored: StoredTensors, state: State, faults: Faults) -> None:
    for name in sorted(stored.tensors.keys() ^ state.tensors.keys()):
        which = "was not there" if name in stored.tensors else "is gone"
        message = f"{local}: tensor {name!r:.200} {which} when the last pull ended"
        faults.add(str(local), LocalDamaged(message), name)


def _check_tensors(
    stored: StoredTensors,
    log: OpenLog,
    state: State,
    faults: Faults,
    tally: Tally,
    threads: int | None,
) -> None:
    known = {n: tensor for n, tensor in stored.tensors.items() if n in state.tensors}
    total = sum(tensor.span.length for tensor in known.values())
    place = str(stored.folder.path)
    with (
        ThreadPoolExecutor(threads or os.cpu_count(), thread_name_prefix="hotswap-verify") as pool,
        tally.phase("verify", total_bytes=total),
    ):
        run_all(
            pool,
            [
                (
                    tensor.span.length,
                    partial(_check, tensor, log, state.tensors[name], place, faults, tally),
                )
                for name, tensor in known.items()
            ],
        )


def _check(
    tensor: StoredTensor, log: OpenLog, wanted: str, place: str, faults: Faults, tally: Tally
) -> None:
    try:
        deltas = log.deltas(tensor.name)
        seen = _folded_digest(tensor, deltas, tally) if deltas else _digest(tensor, tally)
    except OSError as error:
        faults.add(
            place, LocalDamaged(f"{tensor.file.name}: cannot be read ({error})"), tensor.name
        )
        return
    except UpdateRejected as error:
        faults.add(place, LocalDamaged(f"the log: {error}"), tensor.name)
        return
    faults.checked(tensor.span.length)
    if seen != wanted:
        message = (
            f"{tensor.file.name}: tensor {tensor.name!r:.200} has the checksum "
            f"{seen}, but the last pull left {wanted}; pull again, which seeds anew"
        )
        faults.add(place, LocalDamaged(message), tensor.name)


def _digest(tensor: StoredTensor, tally: Tally) -> str:
    hasher, length = new_hasher(OWN_CHECKSUM), tensor.span.length
    buffer = memoryview(bytearray(min(length, _PIECE_BYTES)))
    for at in range(0, length, _PIECE_BYTES):
        piece = buffer[: min(_PIECE_BYTES, length - at)]
        tensor.read_into(piece, offset=at)
        hasher.update(piece)
        tally.through(read=len(piece), done=len(piece))
    return hasher.hexdigest()


def _folded_digest(tensor: StoredTensor, deltas: Sequence[Delta], tally: Tally) -> str:
    """With what the log has on it. Raises: DeltaDamaged."""
    content = np.empty(tensor.span.length, np.uint8)
    tensor.read_into(content.data)
    for delta in deltas:
        delta.apply(content)
    tally.through(read=len(content), done=len(content))
    return checksum(OWN_CHECKSUM, content.data)
