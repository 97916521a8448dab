"""Finding the device of a handle, and its bytes; opening one needs a GPU (tests/gpu)."""

from __future__ import annotations

import pytest
import torch

from hotswap.wire import CudaStorage, PayloadRefused, SentTensor
from hotswap.wire.devices import device_index, on_device, seen_through

UUIDS = ["aaaa-1111", "bbbb-2222"]


@pytest.mark.parametrize(
    ("device", "index"),
    [(0, 0), (1, 1), ("bbbb-2222", 1), ("GPU-BBBB-2222", 1), ("gpu-aaaa-1111", 0)],
)
def test_a_device_goes_by_uuid_or_by_index(device: int | str, index: int) -> None:
    assert device_index(device, UUIDS) == index


@pytest.mark.parametrize("device", [2, "cccc-3333", "0"])
def test_a_device_that_is_not_here_is_refused(device: int | str) -> None:
    with pytest.raises(PayloadRefused, match="this server sees aaaa-1111, bbbb-2222"):
        device_index(device, UUIDS)


def test_a_server_without_devices_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    storage = CudaStorage(
        device=0, handle=bytes(66), size_bytes=4, offset_bytes=0, ref_counter_handle=b"",
        ref_counter_offset=0, event_handle=b"", event_sync_required=False,
    )  # fmt: skip
    tensor = SentTensor(
        dtype=torch.float32, shape=(1,), strides=(1,), offset_bytes=0, storage=storage
    )
    with pytest.raises(PayloadRefused, match="sees no CUDA device"), on_device({"w": tensor}):
        raise AssertionError("was opened")
    with on_device({}) as views:
        assert views == {}


@pytest.mark.parametrize("offset_bytes", [0, 4, 3])
def test_a_view_of_a_storage_at_any_offset(offset_bytes: int) -> None:
    """On the CPU, where views are the same."""
    data = torch.arange(6, dtype=torch.float32)
    raw = torch.zeros(64, dtype=torch.uint8)
    raw[offset_bytes : offset_bytes + 24] = data.view(torch.uint8)
    storage = CudaStorage(
        device=0, handle=bytes(66), size_bytes=64, offset_bytes=0, ref_counter_handle=b"",
        ref_counter_offset=0, event_handle=b"", event_sync_required=False,
    )  # fmt: skip
    tensor = SentTensor(
        dtype=torch.float32, shape=(3, 2), strides=(1, 3), offset_bytes=offset_bytes,
        storage=storage,
    )  # fmt: skip
    seen = seen_through(tensor, raw.untyped_storage())
    assert torch.equal(seen, data.view(2, 3).t())
    shares = seen.untyped_storage().data_ptr() == raw.untyped_storage().data_ptr()
    assert shares is (offset_bytes % 4 == 0)
