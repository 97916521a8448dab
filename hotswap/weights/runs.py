"""Jobs for a bucket: tensors that lie side by side in a file are read with one call.

Rule: payloads that say ``in_order`` can be read once, one after the other as the bucket has
them; they are one job.

A thread that reads holds the interpreter lock for a moment between two calls, and a
forward pass wants it for every operation: a call for each of many small tensors
would slow it down far more than the bytes do.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch

from hotswap.types import Payload
from hotswap.weights.file_tensor import FileTensor
from hotswap.weights.pieces import PIECE_BYTES, Job, fill_jobs

__all__ = ["bucket_jobs"]

_MAX_TENSORS = 512


def bucket_jobs(
    items: Iterable[tuple[torch.Tensor, Payload, tuple[slice, ...]]],
) -> list[Job]:
    """As ``fill_jobs`` for every ``(out, payload, part)``, with fewer jobs."""
    jobs: list[Job] = []
    run = _Run()
    in_order: list[Job] = []
    for out, payload, part in items:
        if getattr(payload, "in_order", False):
            in_order.extend(fill_jobs(out, payload, part=part))
            continue
        if part or not isinstance(payload, FileTensor) or not _is_small_copy(out, payload):
            jobs.extend(fill_jobs(out, payload, part=part))
            continue
        if not run.goes_on_with(payload):
            run = _Run()
        if not run.outs:
            jobs.append(run.read)
        run.append(out, payload)
    return [*jobs, partial(_one_by_one, in_order)] if in_order else jobs


def _one_by_one(jobs: Iterable[Job]) -> None:
    for job in jobs:
        job()


def _is_small_copy(out: torch.Tensor, payload: FileTensor) -> bool:
    return payload.fits(out) and 0 < payload.spec.size_bytes < PIECE_BYTES


class _Run:
    """Tensors that follow each other in one file, and where each is to go."""

    def __init__(self) -> None:
        self.outs: list[torch.Tensor] = []
        self._payloads: list[FileTensor] = []
        self._size_bytes = 0

    def __repr__(self) -> str:
        return f"<_Run {len(self.outs)} tensors, {self._size_bytes} bytes>"

    def goes_on_with(self, payload: FileTensor) -> bool:
        """Whether ``payload`` follows the last one, and one call can read it as well."""
        return not self._payloads or (
            self._payloads[-1].adjoins(payload)
            and self._size_bytes + payload.spec.size_bytes <= PIECE_BYTES
            and len(self._payloads) < _MAX_TENSORS
        )

    def append(self, out: torch.Tensor, payload: FileTensor) -> None:
        """Read ``payload`` into ``out`` as well."""
        self.outs.append(out)
        self._payloads.append(payload)
        self._size_bytes += payload.spec.size_bytes

    def read(self) -> None:
        """Read all of them. Raises: OSError naming a tensor."""
        try:
            self._payloads[0].read_run(self.outs)
        except OSError:
            # One by one, so that the error names the tensor.
            for out, payload in zip(self.outs, self._payloads, strict=True):
                payload.read_into(out)
