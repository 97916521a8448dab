"""Opening the device memory of another process on this machine: CUDA's IPC handles.

Rules: the device is found by its UUID where the sender says that, since its index is the
sender's own and depends on what each process may see; what was opened is let go, and the
sender's counter told so, before the block ends. torch writes to the counter that it is told,
wherever that is: it is looked at before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from hotswap.wire.ranks import same_device
from hotswap.wire.references import counter_segment, give_back_on_device
from hotswap.wire.refused import PayloadRefused, shown
from hotswap.wire.sent import CudaStorage, SentTensor

__all__ = ["device_index", "on_device", "seen_through", "uuid_of"]


def device_index(device: int | str, uuids: Sequence[str]) -> int:
    """Which of the devices of these ``uuids`` a handle is of. Raises: PayloadRefused.

    An index is the sender's own. With one device here it can mean no other: CUDA refuses the
    handle if it does. With several it counts as it is, for senders that see what this sees.
    """
    if isinstance(device, int) and len(uuids) == 1:
        return 0
    if isinstance(device, int) and device < len(uuids):
        return device
    found = [i for i, uuid in enumerate(uuids) if same_device(str(device), uuid)]
    if isinstance(device, int) or len(found) != 1:
        seen = ", ".join(uuids) or "no CUDA device"
        raise PayloadRefused(
            f"a tensor lies on the sender's device {device}, and this server sees {seen}; send it "
            "from a process on the same device, or in shared memory"
        )
    return found[0]


@contextmanager
def on_device(tensors: Mapping[str, SentTensor]) -> Iterator[dict[str, torch.Tensor]]:
    """Views of the sender's memory, for as long as the block lasts.

    The sender keeps it until then. Raises: PayloadRefused; RuntimeError when CUDA cannot
    open a handle.
    """
    uuids = _uuids()
    wanted = {
        tensor.storage for tensor in tensors.values() if isinstance(tensor.storage, CudaStorage)
    }
    places: dict[CudaStorage, int] = {}
    storages: dict[CudaStorage, torch.UntypedStorage] = {}
    views: dict[str, torch.Tensor] = {}
    try:
        places = {storage: device_index(storage.device, uuids) for storage in wanted}
        for storage, index in places.items():
            storages[storage] = _opened(storage, index)
        for name, tensor in tensors.items():
            if isinstance(tensor.storage, CudaStorage):
                views[name] = seen_through(tensor, storages[tensor.storage])
        yield views
    finally:
        give_back_on_device(wanted - storages.keys())
        # Copies out of it may still be on their way.
        for index in set(places.values()):
            torch.cuda.synchronize(index)
        views.clear()
        storages.clear()
        if places:
            collect: Callable[[], None] = torch.cuda.ipc_collect
            collect()


def seen_through(tensor: SentTensor, storage: torch.UntypedStorage) -> torch.Tensor:
    """``tensor`` as a view of ``storage``; as a copy where its bytes are not aligned."""
    flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    piece = flat[tensor.offset_bytes : tensor.offset_bytes + tensor.span_bytes]
    if tensor.offset_bytes % tensor.dtype.itemsize:
        piece = piece.clone()
    return piece.view(tensor.dtype).as_strided(tensor.shape, tensor.strides)


def uuid_of(device: torch.device) -> str | None:
    """The UUID of ``device`` as CUDA spells it; None for a CPU."""
    if device.type != "cuda":
        return None
    return str(torch.cuda.get_device_properties(device).uuid)


def _uuids() -> list[str]:
    if not torch.cuda.is_available():
        return []
    count = torch.cuda.device_count()
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(count)]


def _opened(storage: CudaStorage, index: int) -> torch.UntypedStorage:
    if counter_segment(storage) is None:
        raise PayloadRefused(
            f"{shown(storage.ref_counter_handle)} has no counters of device memory: its sender has "
            "ended, or is on another machine; send the tensors from here"
        )
    return torch.UntypedStorage._new_shared_cuda(
        index,
        storage.handle,
        storage.size_bytes,
        storage.offset_bytes,
        storage.ref_counter_handle,
        storage.ref_counter_offset,
        storage.event_handle,
        storage.event_sync_required,
    )
