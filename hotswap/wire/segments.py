"""Shared memory that another process has filled, read without being mapped.

Rules:

* A segment is a regular file in ``/dev/shm`` of a name that torch gives; it is pinned
  and judged before it is opened (:mod:`hotswap.weights.folder`), and its size is compared
  with what the payload says before anything is read.
* It is read with ``preadv``: one that its owner cuts short meanwhile is an error. Mapped,
  it would be a SIGBUS. Bytes go straight to where they are wanted, at any offset.
* The references that travel with handles are given back when the segment is let go, on
  every path (:mod:`hotswap.wire.references`), so that its owner's end removes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch

from hotswap.errors import UpdateRejected
from hotswap.types import Payload, TensorSpec
from hotswap.weights.file_tensor import FileTensor
from hotswap.weights.folder import Folder, OpenFile
from hotswap.wire.bucket import Sent
from hotswap.wire.devices import on_device
from hotswap.wire.owners import Owner
from hotswap.wire.references import (
    HEADER_BYTES,
    SHARED_MEMORY,
    give_back,
    give_back_on_device,
)
from hotswap.wire.refused import PayloadRefused
from hotswap.wire.sent import SentTensor, SharedStorage
from hotswap.wire.strided import StridedTensor

__all__ = ["opened"]


@contextmanager
def opened(
    sent: Sent,
    *,
    owners: Mapping[str, Owner] | None = None,
    directory: Path = SHARED_MEMORY,
) -> Iterator[dict[str, Payload]]:
    """Payloads for a bucket, which can be read for as long as the block lasts; none after it.

    Each segment is opened once and let go at the end, whatever happened, and device memory
    too. ``owners`` are those of the segments when the payload came. Any thread.
    Raises: PayloadRefused for one that is not there, or smaller than was said.
    """
    owners = owners or {name: Owner.of(name) for name in sent.references}
    with ExitStack() as held:
        held.callback(partial(give_back, sent.references, owners=owners, directory=directory))
        folder = held.enter_context(Folder.open(directory, follows_links=False))
        files: dict[str, OpenFile] = {}
        faults: list[UpdateRejected] = []
        for storage in sent.segments:
            # One that is refused must not keep the others from being let go.
            try:
                if storage.name not in files:
                    files[storage.name] = held.enter_context(folder.open_file(storage.name))
                _check_size(files[storage.name], storage)
            except UpdateRejected as error:
                faults.append(error)
        if faults:
            give_back_on_device(tensor.storage for tensor in sent.tensors.values())
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
    return StridedTensor(spec, tensor=tensor, file=file, start=HEADER_BYTES)


def _check_size(file: OpenFile, storage: SharedStorage) -> None:
    room = file.size_bytes - HEADER_BYTES
    if room < storage.size_bytes:
        raise PayloadRefused(
            f"segment {storage.name} has room for {max(room, 0)} bytes, and the payload says "
            f"{storage.size_bytes}; send a whole one"
        )
