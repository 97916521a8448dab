"""Which payload a rank takes, and how its base64 is read."""

from __future__ import annotations

import base64

import pytest

from hotswap.wire import PayloadRefused, chosen, payload_bytes
from tests.unit.wire.audited import nothing_happens

A, B = "GPU-aaaa-1111", "gpu-BBBB-2222"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_list_goes_by_rank(rank: int) -> None:
    assert chosen(["a", "b"], rank=rank, world_size=2) == "ab"[rank]


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("labelled", [False, True])
def test_a_wrong_number_is_refused(count: int, labelled: bool) -> None:
    payloads = {str(n): "x" for n in range(count)} if labelled else ["x"] * count
    with pytest.raises(PayloadRefused, match=f"{count} payloads and this server 2 ranks"):
        chosen(payloads, world_size=2, device_uuid="0")


@pytest.mark.parametrize("uuid", ["aaaa-1111", "GPU-AAAA-1111", " gpu-aaaa-1111"])
@pytest.mark.parametrize("rank", [0, 1])
def test_labels_go_by_device_and_never_by_place(uuid: str, rank: int) -> None:
    payloads = {B: "b", A: "a"}
    assert chosen(payloads, rank=rank, world_size=2, device_uuid=uuid) == "a"


@pytest.mark.parametrize("uuid", ["cccc-3333", None])
def test_labels_without_this_device_are_refused(uuid: str | None) -> None:
    with pytest.raises(PayloadRefused, match="labelled 'GPU-aaaa-1111', 'gpu-BBBB-2222'"):
        chosen({A: "a", B: "b"}, world_size=2, device_uuid=uuid)


def test_labels_that_name_this_device_twice_are_refused() -> None:
    with pytest.raises(PayloadRefused, match="label one of them"):
        chosen({A: "a", A.upper(): "b"}, world_size=2, device_uuid=A)


PICKLE = b"\x80\x04].\xff"


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def test_base64_and_base64_of_base64() -> None:
    with nothing_happens():
        assert payload_bytes(b64(PICKLE)) == PICKLE
        assert payload_bytes(b64(b64(PICKLE).encode())) == PICKLE
        # Protocol 0 is ASCII and is taken for no base64, nor is base64 of something else.
        assert payload_bytes(b64(b"(lp0\n.")) == b"(lp0\n."
        assert payload_bytes(b64(b64(b"(lp0\n.").encode())) == b64(b"(lp0\n.").encode()


@pytest.mark.parametrize("text", ["a", "a===", "####", "YQ==YQ==", "YQ==\n", " YQ==", "é", "YR=="])
def test_what_is_no_base64_is_refused(text: str) -> None:
    if text == "YR==":
        assert payload_bytes(text) == b"a"
        return
    with (
        nothing_happens(),
        pytest.raises(PayloadRefused, match=r"no base64.*; send what a trainer"),
    ):
        payload_bytes(text)


def test_a_long_one_is_refused_before_it_is_decoded() -> None:
    assert payload_bytes(b64(bytes(30)), limit_bytes=30) == bytes(30)
    with pytest.raises(PayloadRefused, match="44 characters of base64, wanted at most 40"):
        payload_bytes(b64(bytes(33)), limit_bytes=30)
