"""The shapes of a whole payload: a flattened bucket, or a list of named tensors.

Source of the shapes: sglang's ``tensor_bucket.py`` and ``LocalSerializedTensor``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from hotswap.wire.budget import Budget
from hotswap.wire.expected import (
    a_dtype,
    a_number,
    a_text,
    bytes_of,
    fields_of,
    items_of,
    numbers_of,
)
from hotswap.wire.named import handles_in
from hotswap.wire.names import Known
from hotswap.wire.reader import read
from hotswap.wire.records import Call, Value
from hotswap.wire.refused import PayloadRefused, shown
from hotswap.wire.sent import SentTensor, SharedStorage, Storage, row_major
from hotswap.wire.tensors import tensor_of

__all__ = ["FLATTENED", "Sent", "decode"]

FLATTENED = "flattened_bucket"
"""The ``load_format`` of a bucket; None and ``direct`` are a list of named tensors."""

_FORMATS = (None, "direct", FLATTENED)
_METADATA = ("name", "shape", "dtype", "start_idx", "end_idx", "numel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The tensors of one payload, by name, in its order; none for an empty bucket.

    ``segments`` is the shared memory that came with them, that of an empty bucket too;
    ``references`` how many references to each segment, by name, came with it.
    """

    tensors: Mapping[str, SentTensor]
    segments: frozenset[SharedStorage]
    references: Mapping[str, int]

    def __repr__(self) -> str:
        return f"<Sent {len(self.tensors)} tensors>"


def decode(
    payload: bytes,
    *,
    load_format: str | None = None,
    rank: int = 0,
    world_size: int = 1,
    budget: Budget | None = None,
) -> Sent:
    """What ``payload`` describes, read without executing it. Opens no memory.

    ``rank`` chooses among the parts of a tensor that was serialised for each rank.
    Raises: PayloadRefused.
    """
    if load_format not in _FORMATS:
        raise PayloadRefused(
            f"load_format is {shown(load_format)}, wanted {FLATTENED!r}, 'direct' or none; "
            "code that a name would stand for is never imported"
        )
    budget = budget or Budget()
    value = read(payload, budget)
    storages = set[Storage]()
    references = handles_in(value)
    named: Iterator[tuple[str, SentTensor]]
    if load_format == FLATTENED:
        flat, metadata = _bucket(value)
        storages.add(flat.storage)
        named = (_slice(entry, flat) for entry in metadata)
    else:
        named = _listed(
            value, rank=rank, world_size=world_size, budget=budget, references=references
        )
    tensors = _by_name(named, storages)
    return Sent(tensors=tensors, segments=_shared(storages), references=references)


def _shared(storages: Iterable[Storage]) -> frozenset[SharedStorage]:
    return frozenset(held for held in storages if isinstance(held, SharedStorage))


def _by_name(
    named: Iterator[tuple[str, SentTensor]], storages: set[Storage]
) -> dict[str, SentTensor]:
    """What is sent, by name; its memory is added to ``storages``."""
    tensors: dict[str, SentTensor] = {}
    for name, tensor in named:
        storages.add(tensor.storage)
        if name in tensors:
            raise PayloadRefused(f"tensor {shown(name)} is sent twice, wanted once")
        tensors[name] = tensor
    return tensors


def _listed(
    value: Value, *, rank: int, world_size: int, budget: Budget, references: Counter[str]
) -> Iterator[tuple[str, SentTensor]]:
    """Names and tensors; the handles in the parts of this rank are added to ``references``."""
    for pair in items_of(value, "the payload"):
        name, tensor = items_of(pair, "an entry of the payload", count=2)
        what = f"tensor {shown(a_text(name, 'the name of a tensor'))}"
        if isinstance(tensor, Call) and tensor.name is Known.LOCAL:
            tensor = _of_rank(tensor, what, rank=rank, world_size=world_size, budget=budget)
            references += handles_in(tensor)
        yield str(name), tensor_of(tensor, what)


def _of_rank(value: Value, what: str, *, rank: int, world_size: int, budget: Budget) -> Value:
    (values,) = fields_of(value, what, Known.LOCAL, "values")
    parts = items_of(values, f"the parts of {what}")
    if len(parts) != world_size:
        raise PayloadRefused(
            f"{what} has parts for {len(parts)} ranks, and this server has {world_size}; "
            "send one for each"
        )
    part = bytes_of(parts[rank], f"a part of {what}", limit=budget.limits.payload_bytes)
    return read(part, budget)


def _bucket(value: Value) -> tuple[SentTensor, list[Value]]:
    """The bytes of the bucket, and what each piece of them is."""
    flat_value, metadata = fields_of(
        value, "the bucket", Known.BUCKET, "flattened_tensor", "metadata"
    )
    flat = tensor_of(flat_value, "flattened_tensor")
    if len(flat.shape) != 1 or not flat.contiguous:
        raise PayloadRefused(f"flattened_tensor is {flat}, wanted one dimension without gaps")
    return flat, items_of(metadata, "the metadata of the bucket")


def _slice(entry: Value, flat: SentTensor) -> tuple[str, SentTensor]:
    label, dims, kind, begin, end, count = fields_of(
        entry, "an entry of the metadata", Known.METADATA, *_METADATA
    )
    name = a_text(label, "the name of a tensor")
    what = f"tensor {shown(name)}"
    dtype, shape = a_dtype(kind, f"the dtype of {what}"), numbers_of(dims, what, limit=64)
    start, stop = a_number(begin, f"the start of {what}"), a_number(end, f"the end of {what}")
    held, unit = flat.dtype, flat.dtype.itemsize
    if held is torch.uint8:
        held, unit = dtype, 1  # bytes of any dtypes, side by side
    # Otherwise, as in older versions, elements of one dtype, which torch has chosen so that all
    # of the bucket's fit in. Casting them to the live dtype is casting what they were.
    size = math.prod(shape) * held.itemsize
    if not start <= stop <= flat.shape[0] or (stop - start) * unit != size:
        raise PayloadRefused(
            f"{what} lies at [{start}, {stop}] of the {flat.shape[0]} elements of its bucket, "
            f"and {held} {list(shape)} has {size} bytes"
        )
    if a_number(count, f"numel of {what}") != stop - start:
        raise PayloadRefused(f"numel of {what} is {count!r}, wanted {stop - start}")
    tensor = SentTensor(
        dtype=held,
        shape=shape,
        strides=row_major(shape),
        offset_bytes=flat.offset_bytes + start * unit,
        storage=flat.storage,
    )
    return name, tensor
