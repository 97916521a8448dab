"""What a trainer needs to push tensors, with no sglang installed.

Rules:

* Tensors of host memory are copied once, into shared memory of exactly their size; those
  on a device are named by a handle and stay where they are.
* A block owns the memory: it is valid until the block ends, and gone from ``/dev/shm``
  after it. Send the payload, and await the reply, within it.
"""

from __future__ import annotations

import base64
import errno
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

import torch
from torch.multiprocessing import reductions

from hotswap.wire.encoder import encode
from hotswap.wire.names import Known, spelled
from hotswap.wire.records import Call, Fields, Items, Value
from hotswap.wire.references import HEADER_BYTES, SHARED_MEMORY

__all__ = ["check_room", "flattened_bucket", "named_tensors", "new_segment", "per_rank"]

LOCAL_MODULE = spelled(Known.LOCAL)[0]
"""Where sglang has had ``LocalSerializedTensor`` since 0.5.16."""

_Reduce: TypeAlias = Callable[[torch.Tensor], tuple[object, tuple[object, ...]]]


@contextmanager
def flattened_bucket(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[str]:
    """A payload for ``load_format`` ``flattened_bucket``: the bytes of all tensors in one.

    Any dtypes, shapes and strides; none at all is the empty bucket. All tensors are on one
    device. Raises: OSError when ``/dev/shm`` has no room, ValueError for several devices.
    """
    listed = [(name, tensor.detach()) for name, tensor in tensors]
    sizes = [tensor.numel() * tensor.element_size() for _, tensor in listed]
    with ExitStack() as held:
        flat = _flat(sum(sizes), {tensor.device for _, tensor in listed}, held)
        metadata: list[Value] = []
        at = 0
        for (name, tensor), size in zip(listed, sizes, strict=True):
            if size:
                flat.storage[at : at + size].copy_(_bytes(tensor))
            metadata.append(_metadata(name, tensor, at, size))
            at += size
        value = Fields({"flattened_tensor": flat.record, "metadata": Items(metadata)})
        yield _text(value)


@contextmanager
def named_tensors(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[str]:
    """A payload for ``load_format`` ``direct``: a list of names and tensors.

    Raises: OSError when ``/dev/shm`` has no room.
    """
    with ExitStack() as held:
        yield _text(_listed(tensors, held))


@contextmanager
def per_rank(
    tensors: Iterable[tuple[str, Sequence[torch.Tensor]]], *, module: str = LOCAL_MODULE
) -> Iterator[str]:
    """As :func:`named_tensors`, with a tensor for each rank of the server (sglang's
    ``LocalSerializedTensor``). The same text goes to every rank.

    ``module`` is where a server that is sglang has that class: up to 0.5.15 in
    ``sglang.srt.model_executor.model_runner``. hotswap takes either.
    """
    with ExitStack() as held:
        pairs = list[Value]()
        for name, parts in tensors:
            values: list[Value] = [encode(_record(part, held)) for part in parts]
            fields = Fields({"values": Items(values)})
            pairs.append(_pair(name, Call(Known.LOCAL, _tuple(), fields)))
        yield _text(Items(pairs), {Known.LOCAL: module})


class _Flat:
    """One-dimensional bytes, and the record that describes them."""

    def __init__(self, storage: torch.Tensor, record: Value) -> None:
        self.storage = storage
        self.record = record


def _flat(size_bytes: int, devices: set[torch.device], held: ExitStack) -> _Flat:
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"the tensors of one bucket lie on {names}, wanted one device")
    device = next(iter(devices), torch.device("cpu"))
    if device.type != "cpu" and size_bytes:
        storage = torch.empty(size_bytes, dtype=torch.uint8, device=device)
        held.callback(lambda: storage)  # it lives as long as the block
        return _Flat(storage, _on_device(storage))
    storage, record = _shared(torch.uint8, (size_bytes,), held)
    return _Flat(storage, record)


def _listed(tensors: Iterable[tuple[str, torch.Tensor]], held: ExitStack) -> Items:
    return Items([_pair(name, _record(tensor, held)) for name, tensor in tensors])


def _record(tensor: torch.Tensor, held: ExitStack) -> Value:
    tensor = tensor.detach()
    if tensor.device.type != "cpu" and tensor.numel():
        held.callback(lambda: tensor)  # it lives as long as the block
        return _on_device(tensor)
    storage, record = _shared(tensor.dtype, tuple(tensor.shape), held)
    if tensor.numel():
        storage.copy_(tensor)
    return record


def _shared(
    dtype: torch.dtype, shape: tuple[int, ...], held: ExitStack
) -> tuple[torch.Tensor, Value]:
    """A new contiguous tensor in shared memory, and what describes it."""
    size_bytes = math.prod(shape) * dtype.itemsize
    tensor = torch.empty(shape, dtype=dtype)
    if size_bytes:
        check_room(size_bytes)
        storage = new_segment(size_bytes)
        manager, handle, _ = storage._share_filename_cpu_()
        tensor = torch.empty(0, dtype=dtype).set_(storage, 0, shape, tensor.stride())
        # torch removes the segment with the last tensor in it, and ends a process in which
        # somebody else has done so before.
        held.callback(lambda: tensor)
        arguments = _tuple(Known.UNTYPED_STORAGE, manager, handle, size_bytes)
        untyped = Call(Known.REBUILD_STORAGE_FILENAME, arguments)
    else:
        untyped = Call(Known.REBUILD_STORAGE_EMPTY, _tuple(Known.UNTYPED_STORAGE))
    typed = Call(Known.REBUILD_TYPED_STORAGE, _tuple(untyped, dtype))
    layout = _tuple(0, _size(shape), _tuple(*tensor.stride()), False)
    return tensor, Call(Known.REBUILD_TENSOR, _tuple(Known.TENSOR, typed, layout))


def check_room(size_bytes: int) -> None:
    """Raises: OSError when ``/dev/shm`` has no room for a segment of ``size_bytes``."""
    if size_bytes + HEADER_BYTES > _free_bytes():
        raise _full(size_bytes)


def new_segment(size_bytes: int) -> torch.UntypedStorage:
    """A storage in shared memory, all of which the system keeps for it: filled page by page, one
    page too many would be a SIGBUS, and others fill ``/dev/shm`` too.

    Raises: OSError when it has no room.
    """
    try:
        storage = torch.UntypedStorage._new_using_filename_cpu(size_bytes)
        _, name, _ = storage._share_filename_cpu_()
        # Of torch's versions the newer have done so already.
        with open(SHARED_MEMORY / os.fsdecode(name).removeprefix("/"), "r+b") as segment:
            os.posix_fallocate(segment.fileno(), 0, size_bytes + HEADER_BYTES)
    except (RuntimeError, OSError) as error:
        if os.strerror(errno.ENOSPC) in str(error):
            raise _full(size_bytes) from error
        raise
    return storage


def _free_bytes() -> int:
    room = os.statvfs(SHARED_MEMORY)
    return room.f_bavail * room.f_frsize


def _full(size_bytes: int) -> OSError:
    return OSError(
        errno.ENOSPC,
        f"{SHARED_MEMORY} has {_free_bytes()} bytes left and the tensors take {size_bytes}; make "
        "it larger, or send them in smaller pieces",
    )


def _on_device(tensor: torch.Tensor) -> Value:
    """The record of a CUDA IPC handle, as torch or sglang's patch of it makes one."""
    reduce: _Reduce = reductions.reduce_tensor
    _, arguments = reduce(tensor)
    values = [_plain(argument) for argument in arguments]
    by_uuid = isinstance(values[6], str)
    name = Known.REBUILD_CUDA_TENSOR_BY_UUID if by_uuid else Known.REBUILD_CUDA_TENSOR
    return Call(name, _tuple(*values))


def _plain(argument: object) -> Value:
    if argument is None or isinstance(argument, bool | int | str | bytes | torch.dtype):
        return argument
    if isinstance(argument, torch.Size):
        return _size(tuple(argument))
    if isinstance(argument, tuple):
        return _tuple(*map(_plain, argument))
    if isinstance(argument, type):
        return Known.TENSOR if issubclass(argument, torch.Tensor) else Known.TYPED_STORAGE
    raise TypeError(f"{argument!r} stands in no handle of torch {torch.__version__}")


def _metadata(name: str, tensor: torch.Tensor, at: int, size_bytes: int) -> Value:
    fields: dict[str, Value] = {
        "name": name,
        "shape": _size(tuple(tensor.shape)),
        "dtype": tensor.dtype,
        "start_idx": at,
        "end_idx": at + size_bytes,
        "numel": size_bytes,
    }
    return Call(Known.METADATA, _tuple(), Fields(fields))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _tuple(*values: Value) -> Items:
    return Items(list(values), is_tuple=True)


def _size(shape: tuple[int, ...]) -> Call:
    return Call(Known.SIZE, _tuple(_tuple(*shape)))


def _pair(name: str, value: Value) -> Items:
    return _tuple(name, value)


def _text(value: Value, modules: Mapping[Known, str] | None = None) -> str:
    return base64.b64encode(encode(value, modules=modules)).decode("ascii")
