"""A local checkpoint against the checksums that the last pull recorded of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from hotswap.errors import UpdateRejected
from hotswap.stream.checksums import OWN_CHECKSUM, new_hasher
from hotswap.stream.errors import LocalDamaged
from hotswap.stream.lock import reading
from hotswap.stream.parallel import run_all
from hotswap.stream.progress import Progress, Tally
from hotswap.stream.state import Reserved, State, parsed, read_text
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
        state = _state(local)
        try:
            with StoredTensors.at(local) as stored:
                _check_names(local, stored, state, faults)
                _check_tensors(stored, state, faults, tally, threads)
        except UpdateRejected as error:
            faults.add(str(local), error)
    return Verified(
        path=str(local),
        versions=(state.number,),
        checks=faults.checks,
        checked_bytes=faults.checked_bytes,
        faults=faults.found,
    )


def _state(local: Path) -> State:
    state = parsed(read_text(Reserved(local).state))
    if state is None:
        raise LocalDamaged(
            f"{local}: has no .weight_sync/state.json that a pull wrote, and nothing says which "
            "bytes it should hold; pull into it"
        )
    return state


def _check_names(local: Path, stored: StoredTensors, state: State, faults: Faults) -> None:
    for name in sorted(stored.tensors.keys() ^ state.tensors.keys()):
        which = "was not there" if name in stored.tensors else "is gone"
        message = f"{local}: tensor {name!r:.200} {which} when the last pull ended"
        faults.add(str(local), LocalDamaged(message), name)


def _check_tensors(
    stored: StoredTensors, state: State, faults: Faults, tally: Tally, threads: int | None
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
                    partial(_check, tensor, state.tensors[name], place, faults, tally),
                )
                for name, tensor in known.items()
            ],
        )


def _check(tensor: StoredTensor, wanted: str, place: str, faults: Faults, tally: Tally) -> None:
    hasher, length = new_hasher(OWN_CHECKSUM), tensor.span.length
    buffer = memoryview(bytearray(min(length, _PIECE_BYTES)))
    try:
        for at in range(0, length, _PIECE_BYTES):
            piece = buffer[: min(_PIECE_BYTES, length - at)]
            tensor.read_into(piece, offset=at)
            hasher.update(piece)
            tally.through(read=len(piece), done=len(piece))
    except OSError as error:
        faults.add(
            place, LocalDamaged(f"{tensor.file.name}: cannot be read ({error})"), tensor.name
        )
        return
    faults.checked(length)
    if hasher.hexdigest() != wanted:
        message = (
            f"{tensor.file.name}: tensor {tensor.name!r:.200} has the checksum "
            f"{hasher.hexdigest()}, but the last pull left {wanted}; pull again, which seeds anew"
        )
        faults.add(place, LocalDamaged(message), tensor.name)
