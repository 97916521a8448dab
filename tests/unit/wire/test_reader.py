"""What the reader makes of plain data, and that its opcodes are those of Python's tables."""

from __future__ import annotations

import pickle
import pickletools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotswap.wire import Budget, PayloadRefused
from hotswap.wire.encoder import encode
from hotswap.wire.names import Known
from hotswap.wire.opcodes import read_opcodes
from hotswap.wire.reader import read
from hotswap.wire.records import Call, Fields, Items, Value
from tests.unit.wire.audited import nothing_happens
from tests.unit.wire.senders import PROTOCOLS, metadata_class, standing

CONSTANTS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.binary(max_size=20)
)
PLAIN = st.recursive(
    CONSTANTS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5).map(lambda s: s.encode("ascii", "ignore").decode()),
                          inner, max_size=3)
    ),
    max_leaves=12,
)  # fmt: skip


def said(payload: bytes) -> Value:
    with nothing_happens():
        return read(payload, Budget())


def plain(value: Value) -> Any:
    """Records back as what they describe."""
    if isinstance(value, Items):
        made = [plain(item) for item in value.values]
        return tuple(made) if value.is_tuple else made
    if isinstance(value, Fields):
        return {key: plain(item) for key, item in value.values.items()}
    return value


@given(PLAIN, st.sampled_from(PROTOCOLS))
@settings(max_examples=150, deadline=None)
def test_plain_data_is_read_as_pickle_reads_it(value: Any, protocol: int) -> None:
    seen = plain(said(pickle.dumps(value, protocol)))
    assert seen == value
    assert repr(seen) == repr(value)  # 1 is no True, and a list no tuple


@given(PLAIN)
@settings(max_examples=100, deadline=None)
def test_what_is_written_is_read_back_and_is_a_pickle(value: Any) -> None:
    written = encode(said(pickle.dumps(value, 4)))
    assert plain(said(written)) == value
    assert pickle.loads(written) == value  # noqa: S301


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_opcodes_are_those_of_pickletools(protocol: int) -> None:
    shared = ("a", b"\x00\xff" * 200, 2**40, -5, 70000, "\u20ac\n\\")
    value: dict[str, Any] = {"k": [shared, shared, None, True, False, [], (), {}, list(range(300))]}
    payload = pickle.dumps(value, protocol)
    wanted = [op.name for op, _, _ in pickletools.genops(payload)]
    seen = list(read_opcodes(payload, Budget()))
    assert [name for name, _ in seen] == wanted
    for (name, ours), (_, theirs, _) in zip(seen, pickletools.genops(payload), strict=True):
        assert ours == theirs, name


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_tuple_may_stand_twice_beside_itself(protocol: int) -> None:
    for shared in (("a", 1), (("a",), 1, 2, 3, 4)):
        assert plain(said(pickle.dumps([shared, shared], protocol))) == [shared, shared]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_instance_is_its_class_and_its_fields(protocol: int) -> None:
    cls = metadata_class()
    with standing("sglang.srt.weight_sync.tensor_bucket", FlattenedTensorMetadata=cls):
        payload = pickle.dumps(cls("w", torch.Size([2]), torch.bfloat16, 0, 4, 4), protocol)
    record = said(payload)
    assert isinstance(record, Call)
    assert record.name is Known.METADATA
    assert record.fields is not None
    assert record.fields.values["dtype"] is torch.bfloat16
    assert record.fields.values["name"] == "w"
    size = record.fields.values["shape"]
    assert isinstance(size, Call)
    assert (size.name, plain(size.arguments)) == (Known.SIZE, ((2,),))
    assert repr(record) == f"<{Known.METADATA} with 0 arguments>"
    assert [repr(size.arguments), repr(record.fields)] == ["<tuple of 1>", "<dict of 6>"]


def test_a_name_is_no_text() -> None:
    """Or a class would do as a tensor's name or as a key."""
    assert not isinstance(Known.TENSOR, str)
    with pytest.raises(PayloadRefused, match=r"key torch\.Tensor"):
        said(b"}ctorch\nTensor\nNs.")


def test_names_are_compared_whole() -> None:
    for name in ("Tensor.__class__", "Tensor ", "tensor", "Tensor\r", ""):
        with pytest.raises(PayloadRefused):
            said(b"ctorch\n" + name.encode() + b"\n.")


def test_the_budget_says_what_is_used() -> None:
    budget = Budget()
    read(pickle.dumps([1]), budget)
    assert repr(budget).startswith("<Budget ")
    assert "0 opcodes" not in repr(budget)
