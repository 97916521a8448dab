"""A local checkpoint that is loaded as a whole is what the last pull left, or is not loaded.

Rule: a bucket is read and compared before it is delivered, while it still serves when it is
staged; the load then finds its bytes in the page cache. What is damaged is written down, so
that the next pull looks too and makes the copy anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

import torch

from hotswap.niceness import give_way
from hotswap.stream.checksums import OWN_CHECKSUM, new_hasher
from hotswap.stream.errors import LocalDamaged
from hotswap.stream.parallel import run_all
from hotswap.types import Bucket
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
        workers = min(_MAX_THREADS, os.cpu_count() or 1)
        with ThreadPoolExecutor(workers, "hotswap-check", initializer=give_way) as pool:
            run_all(pool, [(one.spec.size_bytes, partial(self._check, one)) for one in plain])

    def _check(self, tensor: FileTensor) -> None:
        wanted = self._digests.get(tensor.spec.name)
        if wanted is None or (seen := _digest_of(tensor)) == wanted:
            return
        raise self._damaged(
            f"tensor {tensor.spec.name!r:.200} has the checksum {seen}, but the last pull left "
            f"{wanted}"
        )


def _digest_of(tensor: FileTensor) -> str:
    spec, hasher = tensor.spec, new_hasher(OWN_CHECKSUM)
    length = max(1, _PIECE_BYTES // spec.dtype.itemsize)
    room = torch.empty(min(length, spec.numel), dtype=spec.dtype)
    for start in range(0, spec.numel, length):
        piece = room[: min(length, spec.numel - start)]
        tensor.read_piece(piece, start)
        hasher.update(piece.view(torch.uint8).numpy().data)
    return hasher.hexdigest()
