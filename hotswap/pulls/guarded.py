"""A local checkpoint that is loaded as a whole is what the last pull left, or is not loaded.

Rules:

* Everything is read and compared while it still serves: a bucket before it is staged, all of
  them before the pause of an update that writes straight into live weights. The load then finds
  the bytes in the page cache.
* What is damaged is written down, so that the next pull looks too and makes the copy anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

import torch

from hotswap.niceness import give_way
from hotswap.stream.checksums import OWN_CHECKSUM, new_hasher
from hotswap.stream.errors import LocalDamaged
from hotswap.stream.parallel import Task, run_all
from hotswap.types import Bucket, Readable
from hotswap.weights.file_tensor import FileTensor

__all__ = ["CopyGuard", "Damaged"]

Damaged: TypeAlias = Callable[[str], LocalDamaged]
"""The error for what a reader saw."""

_PIECE_BYTES = 2 * 2**20  # stays in the cache between reading and hashing
_MAX_THREADS = 4


class CopyGuard:
    """``digests``: tensor name -> xxh3-128 of its bytes in the files of a local checkpoint.

    Only while the directory's lock is held.
    """

    def __init__(self, digests: Mapping[str, str], *, damaged: Damaged) -> None:
        self._digests = digests
        self._damaged = damaged

    def __repr__(self) -> str:
        return f"<CopyGuard {len(self._digests)} tensors>"

    def check(self, bucket: Bucket) -> None:
        """Read the tensors of ``bucket`` that lie in files as they are; what a log changes
        compares itself. Blocks. Raises: LocalDamaged, OSError."""
        plain = [payload for _, payload in bucket if isinstance(payload, FileTensor)]
        _run([(one.spec.size_bytes, partial(self._check, one)) for one in plain])

    def check_whole(self, bucket: Bucket) -> None:
        """Read all of ``bucket``, for who cannot undo what is written before a damaged tensor is
        met. Blocks. Raises: LocalDamaged, OSError."""
        self.check(bucket)
        _run(
            [
                (payload.spec.size_bytes, partial(_read, payload))
                for _, payload in bucket
                if isinstance(payload, Readable) and not isinstance(payload, FileTensor)
            ]
        )

    def _check(self, tensor: FileTensor) -> None:
        wanted = self._digests.get(tensor.spec.name)
        if wanted is None or (seen := _digest_of(tensor)) == wanted:
            return
        raise self._damaged(
            f"tensor {tensor.spec.name!r:.200} has the checksum {seen}, but the last pull left "
            f"{wanted}"
        )


def _run(tasks: Sequence[Task]) -> None:
    workers = min(_MAX_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers, "hotswap-check", initializer=give_way) as pool:
        run_all(pool, tasks)


def _read(payload: Readable) -> None:
    payload.read_into(torch.empty(payload.spec.shape, dtype=payload.spec.dtype))


def _digest_of(tensor: FileTensor) -> str:
    spec, hasher = tensor.spec, new_hasher(OWN_CHECKSUM)
    length = max(1, _PIECE_BYTES // spec.dtype.itemsize)
    room = torch.empty(min(length, spec.numel), dtype=spec.dtype)
    for start in range(0, spec.numel, length):
        piece = room[: min(length, spec.numel - start)]
        tensor.read_piece(piece, start)
        hasher.update(piece.view(torch.uint8).numpy().data)
    return hasher.hexdigest()
