"""Buckets and lists as sglang's clients serialise them, with and without sglang there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from hotswap.wire import FLATTENED, PayloadRefused, decode
from hotswap.wire.encoder import encode
from hotswap.wire.names import Known
from hotswap.wire.records import Call, Fields, Items, Value
from tests.unit.wire.audited import nothing_happens
from tests.unit.wire.senders import (
    BUCKET_MODULES,
    LOCAL_MODULES,
    PROTOCOLS,
    flattened,
    forking,
    metadata_class,
    standing,
)
from tests.unit.wire.test_tensors import a_tuple, received, record

pytestmark = pytest.mark.usefixtures("by_name", "no_segment_left")

MIXED = (
    ("odd", torch.arange(3, dtype=torch.uint8).view(torch.float8_e4m3fn)),
    ("half", torch.arange(5, dtype=torch.bfloat16)),
    ("flag", torch.tensor([True, False, True])),
    ("none", torch.empty(0, 4)),
    ("matrix", torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).t()),
    ("scalar", torch.tensor(7, dtype=torch.int64)),
)


def a_bucket(
    tensors: Any = MIXED, *, module: str = BUCKET_MODULES[0], protocol: int | None = None
) -> tuple[bytes, dict[str, object]]:
    """The payload, and the object that keeps its memory."""
    cls = metadata_class()
    with standing(module, FlattenedTensorMetadata=cls):
        value = flattened(tensors, cls)
        return forking(value, protocol), value


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    plain = [x.contiguous().view(-1).view(torch.uint8) for x in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*plain)


@pytest.mark.parametrize("module", BUCKET_MODULES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_flattened_bucket_of_mixed_dtypes_at_odd_offsets(module: str, protocol: int) -> None:
    payload, held = a_bucket(module=module, protocol=protocol)
    got = received(payload, load_format=FLATTENED)
    assert list(got) == [name for name, _ in MIXED]
    for name, tensor in MIXED:
        assert same_bits(got[name], tensor), name
    assert len(held) == 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_empty_bucket_is_no_tensors(protocol: int) -> None:
    payload, held = a_bucket((), protocol=protocol)
    assert received(payload, load_format=FLATTENED) == {}
    assert len(held) == 2


def test_a_bucket_that_is_an_instance() -> None:
    class FlattenedTensorBucket:
        def __init__(self, fields: dict[str, object]) -> None:
            self.__dict__.update(fields)

    cls = metadata_class()
    module = BUCKET_MODULES[1]
    with standing(module, FlattenedTensorMetadata=cls, FlattenedTensorBucket=FlattenedTensorBucket):
        held = FlattenedTensorBucket(flattened(MIXED, cls))
        payload = forking(held)
    assert list(received(payload, load_format=FLATTENED)) == [name for name, _ in MIXED]


def test_a_bucket_of_one_dtype_whose_indices_count_elements() -> None:
    """As sglang wrote it before buckets could mix dtypes."""
    flat = torch.arange(10, dtype=torch.bfloat16)
    cls = metadata_class()
    with standing(BUCKET_MODULES[1], FlattenedTensorMetadata=cls):
        entries = [
            cls("a", torch.Size([2, 2]), torch.bfloat16, 0, 4, 4),
            cls("b", torch.Size([6]), torch.bfloat16, 4, 10, 6),
        ]
        payload = forking({"flattened_tensor": flat, "metadata": entries})
    got = received(payload, load_format=FLATTENED)
    assert torch.equal(got["a"], flat[:4].view(2, 2))
    assert torch.equal(got["b"], flat[4:])


def test_a_list_and_its_formats() -> None:
    tensor = torch.arange(4.0)
    payload = forking([("w", tensor)])
    for load_format in (None, "direct"):
        assert torch.equal(received(payload, load_format=load_format)["w"], tensor)
    with pytest.raises(PayloadRefused, match="the bucket is <list of 1>, wanted"):
        decode(payload, load_format=FLATTENED)
    bucket, held = a_bucket()
    with pytest.raises(PayloadRefused, match="the payload is <dict of 2>, wanted"):
        decode(bucket)
    assert received(bucket, load_format=FLATTENED).keys() == dict(MIXED).keys()
    assert len(held) == 2


@pytest.mark.parametrize("module", LOCAL_MODULES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_tensor_that_was_serialised_for_each_rank(module: str, protocol: int) -> None:
    @dataclass
    class LocalSerializedTensor:
        values: list[bytes]

    parts = [torch.full((3,), float(rank)) for rank in range(2)]
    with standing(module, LocalSerializedTensor=LocalSerializedTensor):
        values = [forking(part, protocol) for part in parts]
        payload = forking([("w", LocalSerializedTensor(values))], protocol)
    for rank in range(2):
        got = received(payload, rank=rank, world_size=2)
        assert torch.equal(got["w"], parts[rank])
    for world_size in (1, 3):
        with pytest.raises(PayloadRefused, match=f"2 ranks, and this server has {world_size}"):
            decode(payload, world_size=world_size)


def entry(**changed: Value) -> Call:
    """Metadata of a uint8 [4], with something changed."""
    fields: dict[str, Value] = {
        "name": "w", "shape": a_tuple(4), "dtype": torch.uint8, "start_idx": 0, "end_idx": 4,
        "numel": 4,
    }  # fmt: skip
    return Call(Known.METADATA, a_tuple(), Fields({**fields, **changed}))


def bucket(*entries: Value, **flat: Any) -> bytes:
    layout: dict[str, Any] = {
        "shape": a_tuple(24), "strides": a_tuple(1), "dtype": torch.uint8
    } | flat  # fmt: skip
    fields: dict[str, Value] = {
        "flattened_tensor": record(**layout),
        "metadata": Items(list(entries)),
    }
    return encode(Fields(fields))


def test_the_bucket_that_the_cases_below_change_is_right() -> None:
    sent = decode(bucket(entry()), load_format=FLATTENED)
    assert list(sent.tensors) == ["w"]


CASES: dict[str, tuple[bytes, str]] = {
    "ends past the bucket": (bucket(entry(start_idx=21, end_idx=25)), r"\[21, 25\] of the 24"),
    "ends before it begins": (bucket(entry(start_idx=4, end_idx=0)), r"\[4, 0\] of the 24"),
    "begins before the bucket": (bucket(entry(start_idx=-1)), "is -1"),
    "more bytes than it has": (bucket(entry(shape=a_tuple(5))), "has 5 bytes"),
    "a shape without end": (bucket(entry(shape=a_tuple(2**62, 2**62))), "bytes"),
    "a wrong numel": (bucket(entry(numel=5)), "numel of tensor 'w' is 5, wanted 4"),
    "a dtype that is text": (bucket(entry(dtype="uint8")), "is str, wanted a dtype"),
    "no name": (bucket(entry(name="")), "wanted a text"),
    "a name that is a number": (bucket(entry(name=1)), "is int, wanted a text"),
    "a long name": (bucket(entry(name="x" * 2000)), "wanted a text of 1 to 1024"),
    "a name twice": (bucket(entry(), entry()), "'w' is sent twice"),
    "a field more": (bucket(entry(more=1)), "has the fields"),
    "no metadata": (bucket(None), "is nothing|is NoneType"),
    "fields that were never given": (bucket(Call(Known.METADATA, a_tuple())), "is nothing"),
    "two dimensions": (bucket(shape=a_tuple(4, 6), strides=a_tuple(6, 1)), "one dimension"),
    "gaps": (bucket(shape=a_tuple(12), strides=a_tuple(2)), "without gaps"),
    "no list": (encode(Fields({"flattened_tensor": record(), "metadata": None})), "one dimension"),
    "a key less": (encode(Fields({"metadata": Items([])})), "has the fields"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_bucket_that_does_not_fit_itself_is_refused(case: str) -> None:
    payload, wanted = CASES[case]
    with nothing_happens(), pytest.raises(PayloadRefused, match=wanted):
        decode(payload, load_format=FLATTENED)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (Items([a_tuple("w")]), "has 1 parts, wanted 2"),
        (Items([None]), "an entry of the payload is NoneType"),
        (Items([a_tuple(1, record())]), "is int, wanted a text"),
        (Items([a_tuple("w", record()), a_tuple("w", record())]), "'w' is sent twice"),
        (
            Items([a_tuple("w", Call(Known.LOCAL, a_tuple(), Fields({"values": Items([None])})))]),
            "a part of tensor 'w' is NoneType",
        ),
        (Known.TENSOR, r"is torch\.Tensor, wanted a tuple or a list"),
    ],
)
def test_a_list_that_is_none_of_tensors_is_refused(value: Value, wanted: str) -> None:
    payload = encode(value)
    with nothing_happens(), pytest.raises(PayloadRefused, match=wanted):
        decode(payload)
