"""The shapes that a tensor has in a payload: in shared memory, on a device, or empty.

Source of the shapes: what ``torch.multiprocessing.reductions`` of torch 2.4 to 2.13 writes,
and what sglang's patch of it does; the order of the arguments is theirs.
"""

from __future__ import annotations

import re

import torch

from hotswap.wire.expected import (
    a_bool,
    a_dtype,
    a_number,
    a_text,
    arguments_of,
    bytes_of,
    items_of,
    numbers_of,
)
from hotswap.wire.names import Known
from hotswap.wire.records import Call, Value, kind_of
from hotswap.wire.refused import PayloadRefused, shown
from hotswap.wire.sent import COUNTERS, CudaStorage, NoStorage, SentTensor, SharedStorage, Storage

__all__ = ["storage_of", "tensor_of"]

_DIMS = 64
_TENSORS = frozenset({Known.TENSOR, Known.PARAMETER})
_CUDA = (Known.REBUILD_CUDA_TENSOR, Known.REBUILD_CUDA_TENSOR_BY_UUID)
# What torch calls the segments that it makes: process, random number, count.
_SEGMENT = re.compile(rb"/?(torch_[0-9]{1,20}_[0-9]{1,20}(?:_[0-9]{1,20})?)")
_EVENT_BYTES = 64
_UUID = re.compile(r"(?:[A-Za-z]{2,4}-)?[0-9A-Fa-f-]{8,64}")


def tensor_of(value: Value, what: str) -> SentTensor:
    """The tensor that ``value`` describes; ``what`` is its name in messages.

    Raises: PayloadRefused.
    """
    if isinstance(value, Call) and value.name in _CUDA:
        return _on_device(value, what)
    if isinstance(value, Call) and value.name is Known.REBUILD_TENSOR:
        return _in_shared_memory(value, what)
    raise PayloadRefused(
        f"{what} is {kind_of(value)}, wanted a tensor in shared memory (sharing strategy "
        "file_system) or a CUDA IPC handle"
    )


def _in_shared_memory(value: Value, what: str) -> SentTensor:
    cls, storage, metadata = arguments_of(value, what, Known.REBUILD_TENSOR, counts=range(3, 4))
    _check_class(cls, what)
    held, dtype = _typed(storage, f"the storage of {what}")
    offset, shape, strides = _layout(metadata, what)
    return SentTensor(
        dtype=dtype,
        shape=shape,
        strides=strides,
        offset_bytes=offset * dtype.itemsize,
        storage=held,
    )


def _check_class(cls: Value, what: str) -> None:
    if not isinstance(cls, Known) or cls not in _TENSORS:
        raise PayloadRefused(f"{what} is of class {kind_of(cls)}, wanted Tensor or Parameter")


def _layout(metadata: Value, what: str) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    from_start, size, stride, requires_grad = items_of(metadata, f"the layout of {what}", count=4)
    a_bool(requires_grad, f"requires_grad of {what}")
    return (
        a_number(from_start, f"the offset of {what}"),
        numbers_of(size, f"the shape of {what}", limit=_DIMS),
        numbers_of(stride, f"the strides of {what}", limit=_DIMS),
    )


def _typed(value: Value, what: str) -> tuple[Storage, torch.dtype]:
    untyped, dtype = arguments_of(value, what, Known.REBUILD_TYPED_STORAGE, counts=range(2, 3))
    return storage_of(untyped, what), a_dtype(dtype, f"the dtype of {what}")


def storage_of(value: Value, what: str) -> Storage:
    """The host memory that ``value`` is a handle of. Raises: PayloadRefused."""
    makers = (Known.REBUILD_STORAGE_FILENAME, Known.REBUILD_STORAGE_EMPTY)
    arguments = arguments_of(value, what, *makers, counts=range(1, 5))
    if arguments[0] is not Known.UNTYPED_STORAGE:
        raise PayloadRefused(f"{what} is of class {kind_of(arguments[0])}, wanted UntypedStorage")
    if isinstance(value, Call) and value.name is Known.REBUILD_STORAGE_EMPTY:
        return NoStorage
    if len(arguments) != 4:
        raise PayloadRefused(f"{what} is {value!r}, wanted 4")
    # The second is the socket of the sender's torch_shm_manager. Nobody connects to it.
    bytes_of(arguments[1], f"the manager of {what}", limit=4096)
    name = _segment(arguments[2], f"the segment of {what}").removeprefix(b"/")
    size = a_number(arguments[3], f"the size of {what}")
    return SharedStorage(name=name.decode("ascii"), size_bytes=size)


def _on_device(value: Value, what: str) -> SentTensor:
    (cls, size, stride, offset, storage_cls, dtype, device, handle, size_bytes, offset_bytes,
     requires_grad, counter, counter_offset, event, must_wait) = arguments_of(
        value, what, *_CUDA, counts=range(15, 16)
    )  # fmt: skip
    _check_class(cls, what)
    if storage_cls not in (Known.TYPED_STORAGE, Known.UNTYPED_STORAGE):
        raise PayloadRefused(f"the storage of {what} is of class {kind_of(storage_cls)}")
    a_bool(requires_grad, f"requires_grad of {what}")
    kind = a_dtype(dtype, f"the dtype of {what}")
    length = a_number(size_bytes, f"the size of {what}")
    storage: Storage = NoStorage
    if handle is not None and length:
        storage = CudaStorage(
            device=_device(device, what),
            handle=bytes_of(handle, f"the handle of {what}"),
            size_bytes=length,
            offset_bytes=a_number(offset_bytes, f"the place of {what} in its allocation"),
            ref_counter_handle=_segment(counter, f"the counter of {what}"),
            ref_counter_offset=_counter(counter_offset, f"the place of the counter of {what}"),
            event_handle=_event(event, f"the event of {what}"),
            event_sync_required=a_bool(must_wait, f"event_sync_required of {what}"),
        )
    return SentTensor(
        dtype=kind,
        shape=numbers_of(size, f"the shape of {what}", limit=_DIMS),
        strides=numbers_of(stride, f"the strides of {what}", limit=_DIMS),
        offset_bytes=a_number(offset, f"the offset of {what}") * kind.itemsize,
        storage=storage,
    )


def _segment(value: Value, what: str) -> bytes:
    name = bytes_of(value, what)
    if not _SEGMENT.fullmatch(name):
        raise PayloadRefused(f"{what} is {shown(name)}, wanted a name that torch gives")
    return name


def _counter(value: Value, what: str) -> int:
    place = a_number(value, what)
    if place >= COUNTERS:
        raise PayloadRefused(f"{what} is {place}, wanted less than {COUNTERS}")
    return place


def _event(value: Value, what: str) -> bytes:
    handle = bytes_of(value, what)
    if len(handle) != _EVENT_BYTES:  # torch reads so many of them, however long it is
        raise PayloadRefused(f"{what} has {len(handle)} bytes, wanted {_EVENT_BYTES}")
    return handle


def _device(value: Value, what: str) -> int | str:
    if not isinstance(value, str):
        return a_number(value, f"the device of {what}")
    if not _UUID.fullmatch(a_text(value, f"the device of {what}")):
        raise PayloadRefused(f"the device of {what} is {shown(value)}, wanted an index or a UUID")
    return value
