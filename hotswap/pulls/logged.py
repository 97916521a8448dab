"""A local checkpoint whose newest versions lie in its log, read as what it holds.

Rule: a tensor is what its checksum says, or it cannot be read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path

import torch

from hotswap.pulls.guarded import CopyGuard, Damaged
from hotswap.pulls.log_changes import LogChanges
from hotswap.pulls.told_damage import told_as_damage
from hotswap.sparse.origin import Origin
from hotswap.stream.apply import fold
from hotswap.stream.errors import DeltaDamaged, LocalDamaged, without_advice
from hotswap.stream.lock import reading
from hotswap.stream.log import Holding, holding_in
from hotswap.stream.log_files import OpenLog
from hotswap.stream.small_files import small_faults
from hotswap.stream.state import Reserved
from hotswap.stream.suspect import damage_found
from hotswap.types import TensorSpec
from hotswap.weights.checkpoint import Checkpoint
from hotswap.weights.file_tensor import FileTensor
from hotswap.weights.roots import Allowed

__all__ = ["LoggedTensor", "held_checkpoint", "lay_log_over"]


class LoggedTensor:
    """A tensor of a file with the deltas of an open log on it; a ``Readable``.

    ``damaged`` makes the error for one that is not what its checksum says.
    """

    __slots__ = ("_damaged", "_file", "_log")

    def __init__(self, file: FileTensor, log: OpenLog, *, damaged: Damaged) -> None:
        self._file = file
        self._log = log
        self._damaged = damaged

    def __repr__(self) -> str:
        return f"<LoggedTensor {self._file!r}>"

    @property
    def spec(self) -> TensorSpec:
        """Name, dtype and shape."""
        return self._file.spec

    def read_into(self, out: torch.Tensor) -> None:
        """Fill ``out`` (contiguous, CPU, of ``spec``), verified. Any thread; opens nothing.

        Raises: as ``FileTensor.read_into``; LocalDamaged when the bytes are others than published.
        """
        self._file.read_into(out)
        content = out.detach().as_strided((out.numel(),), (1,)).view(torch.uint8).numpy()
        try:
            whole = fold(content, self._log.deltas(self.spec.name)) is not None
        except (DeltaDamaged, LocalDamaged) as error:
            seen = without_advice(error)
            raise self._damaged(f"tensor {self.spec.name!r}: {seen}") from error
        if not whole:
            raise self._damaged(
                f"tensor {self.spec.name!r}: the file and the versions in the log beside it do not "
                "give the bytes that were published"
            )


@contextmanager
def held_checkpoint(
    directory: str | os.PathLike[str], *, timeout_s: float = 600.0
) -> Iterator[Checkpoint]:
    """The checkpoint that ``directory`` holds, with what a log has; no pull changes it meanwhile.

    Any checkpoint will do, and one that no pull keeps needs no lock. Blocks. Raises:
    UpdateRejected (PullPending and LocalBusy among it), OSError.
    """
    with ExitStack() as stack:
        stack.enter_context(reading(Path(directory), timeout_s=timeout_s))
        with told_as_damage(directory, allowed=None):
            checkpoint = stack.enter_context(Checkpoint.open(directory))
        lay_log_over(checkpoint, allowed=None)
        yield checkpoint


def lay_log_over(
    checkpoint: Checkpoint, *, allowed: Allowed | None, pulls_first: bool = False
) -> None:
    """Let ``checkpoint`` deliver what its directory holds: not only what its files are, and no
    tensor that is not the one that a pull recorded.

    Blocks; only while the directory's lock is held. ``pulls_first`` as of ``damage_found``. A
    directory that no pull keeps is delivered as it is. Raises: LocalDamaged, OSError.
    """
    directory = Path(checkpoint.path)
    held = holding_in(directory)
    if held is None:
        return
    damaged = partial(damage_found, directory, pulls_first=pulls_first)
    _check_files(checkpoint, held, damaged)
    if held.log is not None:
        _lay_over(checkpoint, held, allowed, damaged)
    guard = CopyGuard(held.plain.tensors, damaged=damaged)
    checkpoint.before_bucket, checkpoint.before_writing = guard.check, guard.check_whole


def _check_files(checkpoint: Checkpoint, held: Holding, damaged: Damaged) -> None:
    for fault in small_faults(Path(checkpoint.path), held.plain):
        raise damaged(fault)
    names = {spec.name for spec in checkpoint.manifest.tensors}
    for name in sorted(names ^ held.plain.tensors.keys()):
        which = "was not there when the last pull ended" if name in names else "is gone"
        raise damaged(f"tensor {name!r:.200} {which}")


def _lay_over(
    checkpoint: Checkpoint, held: Holding, allowed: Allowed | None, damaged: Damaged
) -> None:
    directory = Path(checkpoint.path)
    lengths = {spec.name: spec.size_bytes for spec in checkpoint.manifest.tensors}
    try:
        log = OpenLog(held, lengths, paths=Reserved(directory), allowed=allowed)
    except LocalDamaged as error:
        raise damaged(without_advice(error)) from error
    try:
        payloads = dict(chain.from_iterable(checkpoint.buckets()))
        over = dict[str, LoggedTensor]()
        for name in log.names:
            payload = payloads[name]
            if not isinstance(payload, FileTensor):
                raise damaged("has a log, and no safetensors")
            over[name] = LoggedTensor(payload, log, damaged=damaged)
    except BaseException:
        log.close()
        raise
    checkpoint.lay_over(over, owner=log)
    if isinstance(checkpoint.origin, Origin):
        checkpoint.changes = LogChanges(directory, held, checkpoint.origin, allowed=allowed)
