"""Tensors as torch's ForkingPickler writes them: values are exact, whatever the layout."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hotswap.types import Payload
from hotswap.weights.safetensors_header import DTYPES
from hotswap.wire import PayloadRefused, SentTensor, decode, opened
from hotswap.wire.encoder import encode
from hotswap.wire.names import Known
from hotswap.wire.records import Call, Items, Value
from hotswap.wire.sent import CudaStorage, NoStorage, SharedStorage
from hotswap.wire.tensors import tensor_of
from tests.unit.wire.audited import nothing_happens
from tests.unit.wire.senders import PROTOCOLS, forking, sharing

pytestmark = pytest.mark.usefixtures("by_name", "no_segment_left")

X = torch.arange(5 * 6 * 7, dtype=torch.float32).view(5, 6, 7)


def value_of(payload: Payload) -> torch.Tensor:
    """A copy of what the payload delivers."""
    if isinstance(payload, torch.Tensor):
        return payload.clone()
    out = torch.empty(payload.spec.shape, dtype=payload.spec.dtype)
    payload.read_into(out)
    return out


def received(payload: bytes, **how: Any) -> dict[str, torch.Tensor]:
    """What a payload delivers, copied out of shared memory."""
    with nothing_happens():
        sent = decode(payload, **how)
    with opened(sent) as payloads:
        return {name: value_of(payload) for name, payload in payloads.items()}


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2),
    "matrix transposed": lambda x: x[0].t(),
    "every second row": lambda x: x[::2],
    "every third column": lambda x: x[:, :, ::3],
    "from the second on": lambda x: x[1:],
    "a slice within": lambda x: x[2, 1:4, 3:5],
    "expanded": lambda x: x[0, 0].expand(4, 7),
    "one element": lambda x: x[1, 2, 3],
    "one of an odd stride": lambda x: x[:1, :, ::2],
    "none": lambda x: x[:0],
    "a view": lambda x: x.view(35, 6)[3:9],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout(layout: str) -> None:
    tensor = LAYOUTS[layout](X.clone())
    got = received(forking([("w", tensor)]))["w"]
    assert got.shape == tensor.shape
    assert torch.equal(got, tensor)


@pytest.mark.parametrize("dtype", sorted(set(DTYPES.values()), key=str), ids=str)
def test_any_dtype(dtype: torch.dtype) -> None:
    raw = torch.arange(64, dtype=torch.uint8) % 2 if dtype is torch.bool else torch.arange(64)
    tensor = raw.to(torch.uint8).view(-1).clone().view(dtype)
    got = received(forking([("w", tensor)]))["w"]
    assert got.dtype == dtype
    assert torch.equal(got.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_any_protocol(protocol: int) -> None:
    tensors = [("a", X.clone()), ("b", torch.nn.Parameter(X[0].clone())), ("c", torch.empty(0, 3))]
    got = received(forking(tensors, protocol))
    assert list(got) == ["a", "b", "c"]
    for name, tensor in tensors:
        assert torch.equal(got[name], tensor), name


def test_tensors_that_share_a_segment_open_it_once() -> None:
    whole = X.clone()
    with nothing_happens():
        sent = decode(forking([("a", whole), ("b", whole[1:]), ("c", whole[0].t())]))
    storages = {tensor.storage for tensor in sent.tensors.values()}
    assert len(storages) == 1
    with opened(sent) as payloads:
        assert torch.equal(value_of(payloads["b"]), whole[1:])
    assert repr(sent) == "<Sent 3 tensors>"


def record(**changed: Any) -> Call:
    """The record of a float32 [2, 3] in a segment of 24 bytes, with something changed."""
    said: dict[str, Any] = {
        "cls": Known.TENSOR, "storage_cls": Known.UNTYPED_STORAGE, "manager": b"/tmp/m",
        "segment": b"/torch_1_2_3", "size_bytes": 24, "dtype": torch.float32, "offset": 0,
        "shape": a_tuple(2, 3), "strides": a_tuple(3, 1), "grad": False,
    } | changed  # fmt: skip
    untyped = Call(
        Known.REBUILD_STORAGE_FILENAME,
        a_tuple(said["storage_cls"], said["manager"], said["segment"], said["size_bytes"]),
    )
    typed = Call(Known.REBUILD_TYPED_STORAGE, a_tuple(untyped, said["dtype"]))
    layout = a_tuple(said["offset"], said["shape"], said["strides"], said["grad"])
    return Call(Known.REBUILD_TENSOR, a_tuple(said["cls"], said.get("typed", typed), layout))


def a_tuple(*values: Value) -> Items:
    return Items(list(values), is_tuple=True)


def test_the_record_that_the_cases_below_change_is_right() -> None:
    sent = tensor_of(record(), "w")
    assert sent == SentTensor(
        dtype=torch.float32,
        shape=(2, 3),
        strides=(3, 1),
        offset_bytes=0,
        storage=SharedStorage(name="torch_1_2_3", size_bytes=24),
    )
    assert str(sent) == "float32 [2, 3] with strides [3, 1]"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an offset past the end": ({"offset": 1}, "its storage has 24"),
    "a shape past the end": ({"shape": a_tuple(3, 3)}, "its storage has 24"),
    "a stride past the end": ({"strides": a_tuple(4, 1)}, "its storage has 24"),
    "an offset that overflows": ({"offset": 2**62}, "past 2\\^63"),
    "a shape that overflows": ({"shape": a_tuple(2**62, 2**62)}, "reaches from byte"),
    "a stride that overflows": ({"strides": a_tuple(2**62, 2**62)}, "reaches from byte"),
    "a shape that overflows though strides are 0": (
        {"shape": a_tuple(2**62, 2**62), "strides": a_tuple(0, 0)}, "reaches from byte"),
    "a shape without elements that overflows": (
        {"shape": a_tuple(0, 2**62, 2**62), "strides": a_tuple(0, 0, 0)}, "multiply"),
    "a negative offset": ({"offset": -1}, "is -1, wanted a number"),
    "a negative size": ({"shape": a_tuple(-2, 3)}, "is -2, wanted a number"),
    "a negative stride": ({"strides": a_tuple(-3, 1)}, "is -3, wanted a number"),
    "a negative segment": ({"size_bytes": -1}, "is -1, wanted a number"),
    "a size that is true": ({"shape": a_tuple(True, 3)}, "wanted a number"),
    "a size that is text": ({"shape": a_tuple("2", 3)}, "is str, wanted a number"),
    "too few strides": ({"strides": a_tuple(3)}, "2 dimensions and 1 strides"),
    "too many dimensions": ({"shape": a_tuple(*[1] * 65)}, "at most 64"),
    "another class": ({"cls": Known.SIZE}, "wanted Tensor or Parameter"),
    "another storage": ({"storage_cls": Known.TYPED_STORAGE}, "wanted UntypedStorage"),
    "no storage": ({"typed": None}, "is NoneType, wanted torch.multiprocessing"),
    "no dtype": ({"dtype": "float32"}, "is str, wanted a dtype"),
    "a flag that is none": ({"grad": 1}, "is int, wanted true or false"),
    "a manager that is none": ({"manager": None}, "is NoneType, wanted at most"),
    "a path": ({"segment": b"/../etc/passwd"}, "wanted a name that torch gives"),
    "a path below": ({"segment": b"/torch_1_2_3/../x"}, "wanted a name that torch gives"),
    "another segment": ({"segment": b"/sem.other"}, "wanted a name that torch gives"),
    "a name with a null": ({"segment": b"/torch_1_2_3\0"}, "wanted a name that torch gives"),
    "a name with a newline": ({"segment": b"/torch_1_2_3\n"}, "wanted a name that torch gives"),
    "a segment that is text": ({"segment": "/torch_1_2_3"}, "is str, wanted at most"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_reaches_out_of_its_storage_is_refused(case: str) -> None:
    changed, wanted = REFUSED[case]
    with nothing_happens(), pytest.raises(PayloadRefused, match=wanted):
        tensor_of(record(**changed), "w")


def test_an_empty_storage_holds_no_elements() -> None:
    empty = Call(Known.REBUILD_STORAGE_EMPTY, a_tuple(Known.UNTYPED_STORAGE))
    typed = Call(Known.REBUILD_TYPED_STORAGE, a_tuple(empty, torch.float32))
    assert tensor_of(record(typed=typed, shape=a_tuple(0, 3)), "w").storage is NoStorage
    with pytest.raises(PayloadRefused, match="its storage has 0"):
        tensor_of(record(typed=typed), "w")
    short = Call(Known.REBUILD_STORAGE_FILENAME, a_tuple(Known.UNTYPED_STORAGE, b"m"))
    typed = Call(Known.REBUILD_TYPED_STORAGE, a_tuple(short, torch.float32))
    with pytest.raises(PayloadRefused, match="wanted 4"):
        tensor_of(record(typed=typed), "w")


@pytest.mark.parametrize("value", [None, "w", 1, a_tuple(), torch.uint8, Known.TENSOR])
def test_what_is_no_tensor_is_refused_and_said(value: Value) -> None:
    with pytest.raises(PayloadRefused, match="wanted a tensor in shared memory"):
        tensor_of(value, "w")


CUDA = (
    "cls", "shape", "strides", "offset", "storage_cls", "dtype", "device", "handle", "size_bytes",
    "offset_bytes", "grad", "counter", "counter_offset", "event", "wait",
)  # fmt: skip


def on_device(name: Known = Known.REBUILD_CUDA_TENSOR, **changed: Any) -> Call:
    said: dict[str, Any] = dict(zip(CUDA, (
        Known.TENSOR, a_tuple(2, 3), a_tuple(3, 1), 2, Known.TYPED_STORAGE, torch.bfloat16, 0,
        bytes(66), 16, 512, False, b"/torch_1_2", 3, bytes(64), True), strict=True,
    )) | changed  # fmt: skip
    return Call(name, a_tuple(*said.values()))


@pytest.mark.parametrize(
    ("name", "device"),
    [
        (Known.REBUILD_CUDA_TENSOR, 1),
        (Known.REBUILD_CUDA_TENSOR_BY_UUID, "a1b2c3d4-0000-1111-2222-333344445555"),
        (Known.REBUILD_CUDA_TENSOR_BY_UUID, "GPU-A1B2C3D4-0000-1111-2222-333344445555"),
    ],
)
def test_a_device_handle_is_an_inert_record(name: Known, device: int | str) -> None:
    with nothing_happens():
        sent = decode(encode(Items([a_tuple("w", on_device(name, device=device))])))
    assert sent.tensors["w"].storage == CudaStorage(
        device=device,
        handle=bytes(66),
        size_bytes=16,
        offset_bytes=512,
        ref_counter_handle=b"/torch_1_2",
        ref_counter_offset=3,
        event_handle=bytes(64),
        event_sync_required=True,
    )
    assert sent.tensors["w"].offset_bytes == 4


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({"offset": 3}, "its storage has 16"),
        ({"size_bytes": 15}, "its storage has 15"),
        ({"handle": None}, "its storage has 0"),
        ({"device": "cuda:0"}, "wanted an index or a UUID"),
        ({"device": -1}, "is -1"),
        ({"device": None}, "is NoneType"),
        ({"handle": bytes(5000)}, "is 5000 bytes"),
        ({"counter": "x"}, "is str"),
        ({"counter_offset": -1}, "is -1"),
        ({"event": None}, "is NoneType"),
        ({"wait": 0}, "wanted true or false"),
        ({"storage_cls": Known.SIZE}, "is of class"),
        ({"cls": Known.SIZE}, "wanted Tensor or Parameter"),
    ],
)
def test_a_device_handle_is_judged(changed: dict[str, Any], wanted: str) -> None:
    with pytest.raises(PayloadRefused, match=wanted):
        tensor_of(on_device(**changed), "w")


def test_a_device_tensor_without_elements() -> None:
    changed: dict[str, Any] = {
        "handle": None,
        "shape": a_tuple(0),
        "strides": a_tuple(1),
        "offset": 0,
    }
    assert tensor_of(on_device(**changed), "w").storage is NoStorage


def test_sharing_by_descriptor_is_refused_with_what_to_do() -> None:
    with sharing("file_descriptor"):
        payload = forking([("w", torch.zeros(3))])
    with nothing_happens(), pytest.raises(PayloadRefused, match="set_sharing_strategy"):
        decode(payload)


def test_a_saved_tensor_is_refused_with_what_to_do() -> None:
    out = io.BytesIO()
    torch.save(torch.zeros(3), out, _use_new_zipfile_serialization=False)
    with nothing_happens(), pytest.raises(PayloadRefused):
        decode(out.getvalue())


def test_nothing_of_the_segment_is_left(tmp_path: Path) -> None:
    tensor = X.clone()
    payload = forking([("w", tensor)])
    assert torch.equal(received(payload)["w"], tensor)
