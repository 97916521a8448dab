"""What a stage delivers, read the way in which an update reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from hotswap.seams import Stage
from hotswap.testing.findings import check, on_one_line
from hotswap.types import Bucket, Payload, Readable
from hotswap.uninterrupted import on_worker_thread
from hotswap.weights.pieces import equal_bytes, spec_of

__all__ = [
    "GivenUp",
    "arrivals",
    "copies",
    "delivered",
    "dense",
    "differences",
    "read_everything",
    "read_on_threads",
    "read_until",
    "take_away",
]

_THREADS = 4
_PAIRS = "yield lists of (name, tensor), [(name, tensor)] for one"


class GivenUp(Exception):
    """What a test raises in the middle of an update."""


def dense(payload: Payload) -> torch.Tensor:
    """A copy of its own of what ``payload`` delivers."""
    if isinstance(payload, torch.Tensor):
        return payload.detach().clone()
    # Zeros, and through a view: what is not filled shows, also where its place was taken.
    out = torch.zeros(payload.spec.shape, dtype=payload.spec.dtype)
    payload.read_into(out.view(payload.spec.shape))
    return out


def copies(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Memory of its own for each."""
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


def arrivals(buckets: Iterable[Bucket]) -> Iterator[tuple[int, str, Payload]]:
    """Number of the bucket, name and payload of everything, in the order in which it comes.

    Raises: AssertionError for a bucket that is none.
    """
    for number, bucket in enumerate(buckets):
        check(
            isinstance(bucket, Sequence),
            f"bucket {number} is a {type(bucket).__name__}, wanted a list",
            todo=_PAIRS,
        )
        for item in bucket:
            _check_pair(number, item)
            name, payload = item
            yield number, name, payload


def delivered(buckets: Iterable[Bucket]) -> dict[str, torch.Tensor]:
    """Copies of every tensor of ``buckets``, by name."""
    found = {}
    for number, name, payload in arrivals(buckets):
        try:
            found[name] = dense(payload)
        except Exception as error:
            error.add_note(f"while tensor {name!r} of bucket {number} was read")
            raise
    return found


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
    """What some of the threads that read at once met that the first had not met."""
    first = delivered(buckets)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="AnyIO worker thread") as pool:
        futures = [pool.submit(delivered, buckets) for _ in range(2 * _THREADS)]
        errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        return [on_one_line(errors[0])]
    found = [future.result() for future in futures]
    return sorted({f"other bytes of {name}" for each in found for name in differences(each, first)})


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


def _check_pair(number: int, item: object) -> None:
    seen = f"bucket {number} holds a {type(item).__name__}"
    pair = item if isinstance(item, tuple | list) and len(item) == 2 else None
    check(pair is not None, f"{seen}, wanted a name and its tensor", todo=_PAIRS)
    name, payload = pair or ("", None)
    check(
        isinstance(name, str),
        f"bucket {number} names a tensor by a {type(name).__name__}, wanted a text",
        todo=_PAIRS,
    )
    check(
        isinstance(payload, torch.Tensor | Readable),
        f"bucket {number} delivers {name!r} as a {type(payload).__name__}, wanted a torch.Tensor "
        "or an object with spec and read_into(out)",
        todo="convert it, torch.from_numpy(array) for one of NumPy",
    )
