"""A local checkpoint's tensors against the checksums that the last pull recorded of them.

Rule: what a tensor is, is its file's bytes with what the log has on them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

import numpy as np

from hotswap.errors import UpdateRejected
from hotswap.stream.blobs import Delta
from hotswap.stream.checksums import OWN_CHECKSUM, checksum, new_hasher
from hotswap.stream.errors import LocalDamaged, without_advice
from hotswap.stream.log_files import OpenLog
from hotswap.stream.parallel import run_all
from hotswap.stream.progress import Tally
from hotswap.stream.small_files import refuse_small_faults
from hotswap.stream.state import State
from hotswap.stream.stored import StoredTensor, StoredTensors
from hotswap.stream.verified import Faults

__all__ = ["check_tensors", "refuse_damage"]

_PIECE_BYTES = 2 * 2**20  # stays in the cache between reading and hashing


def refuse_damage(
    stored: StoredTensors, log: OpenLog, state: State, *, pool: Executor, tally: Tally
) -> None:
    """Read everything. Raises: LocalDamaged naming the first tensor or file that is another one."""
    refuse_small_faults(Path(str(stored.folder.path)), state)
    faults = Faults()
    check_tensors(stored, log, state, faults=faults, pool=pool, tally=tally)
    if faults.found:
        first, more = faults.found[0], len(faults.found) - 1
        raise LocalDamaged(first.message + (f" ({more} more like it)" if more else ""))


def check_tensors(
    stored: StoredTensors,
    log: OpenLog,
    state: State,
    *,
    faults: Faults,
    pool: Executor,
    tally: Tally,
    only: Collection[str] | None = None,
    advice: str = "",
) -> None:
    """Let ``faults`` hear of every tensor (of ``only``) that is not what ``state`` says.

    ``advice`` ends each message.
    """
    known = [
        tensor
        for name, tensor in stored.tensors.items()
        if name in state.tensors and (only is None or name in only)
    ]
    place = str(stored.folder.path)

    def check(tensor: StoredTensor) -> None:
        wrong = _what_is_wrong(tensor, log, state.tensors[tensor.name], faults, tally)
        if wrong is not None:
            faults.add(place, LocalDamaged(wrong + advice), tensor.name)

    with tally.phase("verify", total_bytes=sum(tensor.span.length for tensor in known)):
        run_all(pool, [(tensor.span.length, partial(check, tensor)) for tensor in known])


def _what_is_wrong(
    tensor: StoredTensor, log: OpenLog, wanted: str, faults: Faults, tally: Tally
) -> str | None:
    try:
        deltas = log.deltas(tensor.name)
        seen = _folded_digest(tensor, deltas, tally) if deltas else _digest(tensor, tally)
    except OSError as error:
        return f"{tensor.file.name}: cannot be read ({error})"
    except UpdateRejected as error:
        return f"the log: {without_advice(error)}"
    faults.checked(tensor.span.length)
    if seen == wanted:
        return None
    return (
        f"{tensor.file.name}: tensor {tensor.name!r:.200} has the checksum {seen}, but the last "
        f"pull left {wanted}"
    )


def _digest(tensor: StoredTensor, tally: Tally) -> str:
    hasher, length = new_hasher(OWN_CHECKSUM), tensor.span.length
    buffer = np.empty(min(length, _PIECE_BYTES), np.uint8).data
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
