"""What a stage delivers, read the way in which an update reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from hotswap.seams import Stage
from hotswap.types import Bucket, Payload
from hotswap.uninterrupted import on_worker_thread
from hotswap.weights.pieces import equal_bytes, spec_of

__all__ = [
    "GivenUp",
    "delivered",
    "dense",
    "differences",
    "names_of",
    "read_everything",
    "read_on_threads",
    "read_until",
    "take_away",
]

_THREADS = 4


class GivenUp(Exception):
    """What a test raises in the middle of an update."""


def dense(payload: Payload) -> torch.Tensor:
    """A copy of its own of what ``payload`` delivers."""
    if isinstance(payload, torch.Tensor):
        return payload.detach().clone()
    out = torch.empty(payload.spec.shape, dtype=payload.spec.dtype)
    payload.read_into(out)
    return out


def delivered(buckets: Iterable[Bucket]) -> dict[str, torch.Tensor]:
    """Copies of every tensor of ``buckets``, by name."""
    return {name: dense(payload) for bucket in buckets for name, payload in bucket}


def names_of(buckets: Iterable[Bucket]) -> list[str]:
    """Every name in the order in which it came, repetitions included."""
    return [name for bucket in buckets for name, _ in bucket]


async def read_everything(stage: Stage) -> dict[str, torch.Tensor]:
    """Every tensor of one pass, read on a worker thread."""
    return await on_worker_thread(lambda: delivered(stage.buckets()))


def differences(
    got: Mapping[str, torch.Tensor],
    wanted: Mapping[str, torch.Tensor],
    *,
    only: str | None = None,
) -> list[str]:
    """Names that both have, of one shape and dtype, whose bits differ; ``only`` one of them."""
    names = [name for name in wanted if name in got and only in (None, name)]
    return [name for name in names if not _equal(name, got[name], wanted[name])]


def _equal(name: str, one: torch.Tensor, other: torch.Tensor) -> bool:
    if spec_of(name, one) != spec_of(name, other):
        return True  # that is another fault, with a test of its own
    return equal_bytes(one.contiguous(), other.contiguous())


def read_on_threads(buckets: Sequence[Bucket]) -> list[str]:
    """Names that some thread read otherwise than the first, of all that read at once."""
    first = delivered(buckets)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="AnyIO worker thread") as pool:
        futures = [pool.submit(delivered, buckets) for _ in range(2 * _THREADS)]
        found = [future.result() for future in futures]
    return sorted({name for each in found for name in differences(each, first)})


def read_until(buckets: Iterable[Bucket], number: int) -> None:
    """Read buckets one by one. Raises: GivenUp at bucket ``number``."""
    for at, bucket in enumerate(buckets):
        delivered([bucket])
        if at == number:
            raise GivenUp


def take_away(source: str) -> None:
    """Move a source that is a local path to where nobody finds it."""
    path = Path(source)
    if source and path.exists():
        path.rename(path.with_name(path.name + ".taken-away"))
