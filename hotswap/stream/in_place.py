"""The steady state: what changes in a local checkpoint, verified and put aside.

Rule: nothing that is read is written here, and without ``changes`` nothing at all. A tensor
is read, changed and hashed a piece at a time; what goes into a journal, as the words that differ,
or into a second copy, counts only once every tensor has been verified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from hotswap.stream.apply import Fold
from hotswap.stream.one_tensor import Changed, stage_one
from hotswap.stream.parallel import Task, run_all
from hotswap.stream.several import in_batches, stage_several
from hotswap.stream.staging import STAGING, Changes, InPlace
from hotswap.stream.stored import StoredTensors

__all__ = ["STAGING", "Changes", "InPlace", "stage_changes"]


def stage_changes(
    local: StoredTensors,
    deltas: Fold,
    staging: InPlace,
    *,
    beside: Callable[[], None] | None = None,
) -> tuple[str, ...]:
    """Put everything that ``deltas`` change where it goes; the files, by their numbers there.

    A tensor of which only ``earlier`` deltas are known has none in ``deltas``, but its name.
    ``beside`` is called meanwhile, in this thread.

    Raises: DeltaDamaged, LocalDamaged, OSError of the local disk.
    """
    files = tuple(local.files)
    number_of = {file: number for number, file in enumerate(files)}
    tensors = [(local.tensors[name], own) for name, own in deltas.items()]
    changed = [
        Changed(tensor=tensor, file=number_of[tensor.file.name], own=own, staging=staging)
        for tensor, own in tensors
    ]
    with staging.tally.phase(STAGING, total_bytes=sum(one.length for one in changed)):
        run_all(staging.pool, _tasks(changed), beside=beside)
    return files


def _tasks(changed: Sequence[Changed]) -> Iterator[Task]:
    batches, alone = in_batches(changed)
    for batch in batches:
        yield sum(one.length for one in batch), partial(_stage, batch)
    for one in alone:
        yield one.length, partial(_stage_alone, one)


def _stage(batch: Sequence[Changed]) -> None:
    for one in stage_several(batch):
        stage_one(one)


def _stage_alone(one: Changed) -> None:
    stage_one(one.with_earlier())
