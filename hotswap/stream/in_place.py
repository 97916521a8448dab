"""The steady state: what changes in a local checkpoint, verified and put aside.

Rule: nothing that is read is written here, and without ``changes`` nothing at all. A tensor
is read, changed and hashed a piece at a time; what goes into a journal, as the words that differ,
or into a second copy, counts only once every tensor has been verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hotswap.stream.apply import Fold
from hotswap.stream.blobs import Delta
from hotswap.stream.errors import DeltaDamaged
from hotswap.stream.one_tensor import OneTensor, stage_one
from hotswap.stream.parallel import run_all
from hotswap.stream.staging import STAGING, Changes, InPlace
from hotswap.stream.stored import StoredTensor, StoredTensors

__all__ = ["STAGING", "Changes", "InPlace", "stage_changes"]


def stage_changes(local: StoredTensors, deltas: Fold, staging: InPlace) -> tuple[str, ...]:
    """Put everything that ``deltas`` change where it goes; the files, by their numbers there.

    A tensor of which only ``earlier`` deltas are known has none in ``deltas``, but its name.

    Raises: DeltaDamaged, LocalDamaged, OSError of the local disk.
    """
    files = tuple(local.files)
    number_of = {file: number for number, file in enumerate(files)}
    tensors = [(local.tensors[name], of) for name, of in deltas.items()]
    total = sum(tensor.span.length for tensor, _ in tensors)
    with staging.tally.phase(STAGING, total_bytes=total):
        run_all(
            staging.pool,
            [
                (
                    tensor.span.length,
                    partial(_stage, tensor, number_of[tensor.file.name], of, staging),
                )
                for tensor, of in tensors
            ],
        )
    return files


def _stage(tensor: StoredTensor, file: int, own: Sequence[Delta], staging: InPlace) -> None:
    earlier = staging.earlier(tensor.name)
    one = OneTensor(
        tensor=tensor, file=file, deltas=(*earlier, *own), own_from=len(earlier), staging=staging
    )
    try:
        stage_one(one)
    except DeltaDamaged:
        if earlier:
            one.check_earlier()
        raise
