"""Shared memory that another process has filled, read without being mapped.

Rules:

* A segment is a regular file in ``/dev/shm`` of a name that torch gives; it is pinned
  and judged before it is opened (:mod:`hotswap.weights.folder`), and its size is compared
  with what the payload says before anything is read.
* It is read with ``preadv``: one that its owner cuts short meanwhile is an error. Mapped,
  it would be a SIGBUS. Bytes go straight to where they are wanted, at any offset.
* The reference that travels with a handle is given back when the segment is let go, on
  every path, so that its owner's end removes it. One whose owner has ended is removed here.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch

from hotswap.errors import UpdateRejected
from hotswap.types import Payload, TensorSpec
from hotswap.weights.file_tensor import FileTensor
from hotswap.weights.folder import Folder, OpenFile
from hotswap.weights.memory import Memory
from hotswap.wire.bucket import Sent
from hotswap.wire.devices import on_device
from hotswap.wire.refused import PayloadRefused
from hotswap.wire.sent import SentTensor, SharedStorage

__all__ = ["HEADER_BYTES", "SHARED_MEMORY", "StridedTensor", "let_go", "opened"]

SHARED_MEMORY = Path("/dev/shm")
"""Where torch keeps its segments."""

HEADER_BYTES = 64
"""torch's count of users (32 bits) and padding, in front of the bytes of a storage."""


@contextmanager
def opened(sent: Sent, *, directory: Path = SHARED_MEMORY) -> Iterator[dict[str, Payload]]:
    """Payloads for a bucket, which can be read for as long as the block lasts; none after it.

    Each segment is opened once and let go at the end, whatever happened, and device memory
    too. Any thread.
    Raises: PayloadRefused for one that is not there, or smaller than was said.
    """
    with ExitStack() as held:
        folder = held.enter_context(Folder.open(directory))
        files: dict[str, OpenFile] = {}
        faults: list[UpdateRejected] = []
        for storage in sent.segments:
            # One that is refused must not keep the others from being let go.
            try:
                if storage.name not in files:
                    files[storage.name] = held.enter_context(_segment(folder, storage))
                _check_size(files[storage.name], storage)
            except UpdateRejected as error:
                faults.append(error)
        if faults:
            raise faults[0]
        views = held.enter_context(on_device(sent.tensors))
        payloads: dict[str, Payload] = {
            name: views[name] if name in views else _payload(name, tensor, files)
            for name, tensor in sent.tensors.items()
        }
        # Whoever keeps the mapping would keep the sender's device memory open with it.
        held.callback(payloads.clear)
        yield payloads


def _payload(name: str, tensor: SentTensor, files: Mapping[str, OpenFile]) -> Payload:
    spec = TensorSpec(name=name, dtype=tensor.dtype, shape=tensor.shape)
    storage = tensor.storage
    if not isinstance(storage, SharedStorage):
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    file = files[storage.name]
    if tensor.contiguous:
        return FileTensor(spec, file=file, offset=HEADER_BYTES + tensor.offset_bytes)
    return StridedTensor(spec, tensor=tensor, file=file)


def _check_size(file: OpenFile, storage: SharedStorage) -> None:
    room = file.size_bytes - HEADER_BYTES
    if room < storage.size_bytes:
        raise PayloadRefused(
            f"segment {storage.name} has room for {max(room, 0)} bytes, and the payload says "
            f"{storage.size_bytes}; send a whole one"
        )


@contextmanager
def _segment(folder: Folder, storage: SharedStorage) -> Iterator[OpenFile]:
    with folder.open_file(storage.name) as file:
        try:
            yield file
        finally:
            _let_go(folder.path / storage.name)


def let_go(segments: Iterable[SharedStorage], *, directory: Path = SHARED_MEMORY) -> None:
    """Give back the references of ``segments`` that nobody is going to read. Any thread."""
    for name in {storage.name for storage in segments}:
        _let_go(directory / name)


def _let_go(path: Path) -> None:
    """Give back the reference that came with the handle, or remove what nobody owns.

    The owner waits for the reply before it lets go itself, so that both do not count at
    once. The last reference is never taken: it is the owner's.
    """
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return
            if not _lives(int(path.name.split("_")[1])):
                path.unlink()
                return
            users = int.from_bytes(os.pread(fd, 4, 0), "little", signed=True)
            if users > 1:
                before = os.fstat(fd)
                os.pwrite(fd, (users - 1).to_bytes(4, "little", signed=True), 0)
                # A request that was sent twice may be reading it still: to that, nothing changed.
                os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))
        finally:
            os.close(fd)


def _lives(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


class StridedTensor:
    """Elements with gaps between them, or out of order, in a segment; a ``Readable``.

    The block of :func:`opened` owns the segment; nothing is read once that has ended.
    """

    __slots__ = ("_file", "_spec", "_tensor")

    def __init__(self, spec: TensorSpec, *, tensor: SentTensor, file: OpenFile) -> None:
        self._spec = spec
        self._tensor = tensor
        self._file = file

    def __repr__(self) -> str:
        return f"<StridedTensor {self._spec} in {self._file.name}>"

    @property
    def spec(self) -> TensorSpec:
        """Name, dtype and shape."""
        return self._spec

    def read_into(self, out: torch.Tensor) -> None:
        """Fill ``out`` with the elements in their order. Any thread; takes as much memory for
        a while as lies between the first and the last. Raises: OSError."""
        span = self._tensor.span_bytes
        if not span:
            return
        whole = TensorSpec(
            name=self._spec.name, dtype=self._spec.dtype, shape=(span // self._spec.dtype.itemsize,)
        )
        with Memory(span) as memory:
            flat = memory.tensor(0, whole)
            at = HEADER_BYTES + self._tensor.offset_bytes
            FileTensor(whole, file=self._file, offset=at).read_into(flat)
            _copy(flat, self._tensor, out)


_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _copy(flat: torch.Tensor, tensor: SentTensor, out: torch.Tensor) -> None:
    """With numpy, on this thread: torch's own would fight with the forward passes."""
    kind = _AS_INTEGERS[tensor.dtype.itemsize]
    source = flat.view(kind).as_strided(tensor.shape, tensor.strides)
    np.copyto(out.detach().view(kind).numpy(), source.numpy())
