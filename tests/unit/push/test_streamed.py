"""A safetensors body that is read as it comes, and shared memory that is described."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import torch

from hotswap.errors import UpdateRejected
from hotswap.push import (
    MAX_HEADER_BYTES,
    DescribedTensor,
    SafetensorsBody,
    SegmentNotSeen,
    SharedTensors,
    StreamedPush,
)
from hotswap.testing.tiny_modules import tiny_state
from hotswap.types import Placement, Readable
from hotswap.wire import PayloadRefused, PushStrategy, push_update, strategy
from tests.unit.push.test_incoming import Sender


def stated(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


async def pushed(body: bytes, *, length: int | None = None) -> StreamedPush:
    sender = Sender()
    sender.send(body, more=False)
    return await StreamedPush.begin(sender.incoming(), length=length)


def filled(payload: object) -> torch.Tensor:
    assert isinstance(payload, Readable)
    out = torch.empty(payload.spec.shape, dtype=payload.spec.dtype)
    payload.read_into(out)
    return out


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("skipped", [[], ["head.weight", "steps"]])
async def test_every_tensor_comes_in_its_turn(known: bool, skipped: list[str]) -> None:
    state = tiny_state(1)
    body = b"".join(SafetensorsBody(state.items()))
    push = await pushed(body, length=len(body) if known else None)
    assert len(push) == len(state)
    with push.opened() as payloads:
        assert list(payloads) == list(state)
        for name, payload in payloads.items():
            if name not in skipped:
                assert torch.equal(filled(payload), state[name])
        with pytest.raises(OSError, match="has gone by already"):
            filled(payloads["embed.weight"])
    assert "tensors at byte" in repr(push)


async def test_neighbours_come_in_one_bucket_while_they_are_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(strategy, "_RUN_BYTES", 16)
    sizes = {"none": 0, "a": 8, "b": 8, "c": 12, "large": 40, "d": 8, "e": 8, "last": 1}
    state = {name: torch.arange(size, dtype=torch.uint8) for name, size in sizes.items()}
    push = await pushed(b"".join(SafetensorsBody(state.items())))
    async with PushStrategy().open(push_update(push), Placement()) as stage:
        buckets = stage.buckets()
        names = [[name for name, _ in bucket] for bucket in buckets]
        assert names == [["none", "a", "b"], ["c"], ["large"], ["d", "e"], ["last"]]
        for bucket in buckets:
            for name, payload in bucket:
                assert torch.equal(filled(payload), state[name])


ONE = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
REFUSED: Mapping[str, tuple[bytes, int | None, str]] = {
    "nothing": (b"", None, "its end is missing"),
    "a header of 2^60 bytes": ((2**60).to_bytes(8, "little"), None, "wanted at most 16777216"),
    "a header past its bound": (
        (MAX_HEADER_BYTES + 1).to_bytes(8, "little"),
        None,
        "wanted at most 16777216",
    ),
    "a header past the body": ((100).to_bytes(8, "little") + b"{}", 10, "no more than the body"),
    "half a header": ((100).to_bytes(8, "little") + b"{", None, "ends within its header"),
    "JSON alone": (b'{"tensors": []}', None, "no safetensors file"),
    "no JSON": (stated(0).replace(b"0", b"x"), None, "header starts with b'x'"),
    "no tensors": (stated({}), None, "0 tensors"),
    "a hole": (
        stated({"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}),
        None,
        "leaves a hole",
    ),
    "more than the body has": (stated(ONE), len(stated(ONE)) + 4, "truncated"),
    "less than the body has": (stated(ONE, bytes(12)), len(stated(ONE)) + 12, "belong to none"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_a_header_is_refused_before_anything_is_read(what: str) -> None:
    body, length, said = REFUSED[what]
    with pytest.raises(UpdateRejected, match=said):
        await pushed(body, length=length)


async def test_the_end_of_the_body_is_that_of_its_last_tensor() -> None:
    for data, error in ((bytes(4), "fewer bytes"), (bytes(9), "goes on after its last")):
        push = await pushed(stated(ONE, data))
        with push.opened() as payloads, pytest.raises(OSError, match=error):
            filled(payloads["a"])
    push = await pushed(stated(ONE, bytes(8)))
    with push.opened() as payloads:
        assert filled(payloads["a"]).tolist() == [0.0, 0.0]


def test_described_memory_is_read_where_the_nonce_is_right() -> None:
    state = tiny_state(2)
    with SharedTensors.of(state.items()) as shared:
        push = shared.description().push()
        for _ in range(2):
            with push.opened() as payloads:
                assert list(payloads) == list(state)
                for name, payload in payloads.items():
                    assert torch.equal(filled(payload), state[name])
        other = msgspec.structs.replace(shared.description(), nonce="0" * 64).push()
        with pytest.raises(SegmentNotSeen, match="send the tensors as a body"), other.opened():
            pytest.fail("the memory was opened")
    gone = msgspec.structs.replace(shared.description(), segment="torch_1_2_3").push()
    with pytest.raises(SegmentNotSeen, match="as a body"), gone.opened():
        pytest.fail("there is no such memory")


def test_a_segment_that_is_smaller_than_was_said_is_refused() -> None:
    with SharedTensors.of(tiny_state(2).items()) as shared:
        said = shared.description()
        grown = msgspec.structs.replace(said, size_bytes=said.size_bytes + 2**20).push()
        with pytest.raises(SegmentNotSeen, match="has room for"), grown.opened():
            pytest.fail("the memory was opened")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"segment": "../etc/passwd"}, "a name that torch gives"),
        ({"segment": "torch_1_2_3\n"}, "a name that torch gives"),
        ({"size_bytes": 40}, "its storage has 40"),
        ({"tensors": [{"dtype": "F4"}]}, "dtype 'F4' is not supported"),
        ({"tensors": [{"offset": 2**62}]}, "reaches from byte"),
        ({"tensors": [{"shape": [2**40, 2**40]}]}, "reaches from byte"),
        ({"tensors": [{}, {}]}, "appears twice"),
        ({"tensors": [{"name": "\0nonce"}]}, "appears twice"),
    ],
)
def test_a_description_is_judged_before_memory_is_opened(
    changes: dict[str, Any], said: str
) -> None:
    one = {"name": "a", "dtype": "F32", "shape": [2], "offset": 64}
    tensors = [DescribedTensor(**{**one, **more}) for more in changes.pop("tensors", [{}])]
    with SharedTensors.of([("a", torch.ones(2))]) as shared:
        described = msgspec.structs.replace(shared.description(), tensors=tensors, **changes)
        with pytest.raises(PayloadRefused, match=said):
            described.push()
