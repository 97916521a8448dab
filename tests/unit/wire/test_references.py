"""What came with a payload goes back, as often as it came: A27."""

from __future__ import annotations

import base64
import errno
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hotswap.errors import UpdateRejected
from hotswap.wire import CudaStorage, Received, decode, opened
from hotswap.wire.named import handles_in, names_in, names_in_body
from hotswap.wire.owners import UNKNOWN, Owner, is_mapped
from hotswap.wire.records import Items
from hotswap.wire.references import (
    HEADER_BYTES,
    counter_segment,
    give_back,
    give_back_on_device,
)
from hotswap.wire.sent import COUNTERS
from tests.unit.wire.senders import LOCAL_MODULES, PROTOCOLS, forking, local_class, standing

X = torch.arange(12, dtype=torch.float32)
OWN = f"torch_{os.getpid()}_17_0"


def a_segment(directory: Path, *, users: int, name: str = OWN) -> Path:
    path = directory / name
    path.write_bytes(users.to_bytes(4, "little", signed=True).ljust(HEADER_BYTES + 8, b"\0"))
    return path


def users_of(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[:4], "little", signed=True)


def segment_of(tensor: torch.Tensor) -> Path:
    _, name, _ = tensor.untyped_storage()._share_filename_cpu_()
    return Path("/dev/shm") / bytes(name).decode().removeprefix("/")


@pytest.mark.parametrize(
    ("users", "back", "left"),
    [(5, 1, 4), (5, 3, 2), (5, 9, 1), (1, 1, 1), (0, 1, 0), (-3, 1, -3), (2, 0, 2)],
)
def test_the_last_one_is_the_owners(tmp_path: Path, users: int, back: int, left: int) -> None:
    path = a_segment(tmp_path, users=users)
    give_back({OWN: back, "torch_1_2_3": 1}, directory=tmp_path)
    assert users_of(path) == left


@pytest.mark.parametrize("kind", ["fifo", "directory", "link"])
def test_what_is_no_segment_is_left_alone(tmp_path: Path, kind: str) -> None:
    path, target = tmp_path / OWN, a_segment(tmp_path, users=3, name="other")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(target)
    give_back({OWN: 1}, directory=tmp_path)
    assert path.lstat()
    assert users_of(target) == 3


def test_a_process_is_its_number_and_when_it_was_started() -> None:
    own = Owner.of(OWN)
    assert (own.pid, own.lives) == (os.getpid(), True)
    # Its number has become another's since.
    assert own.started is not None
    assert not Owner(pid=own.pid, started=own.started - 1).lives
    assert not Owner(pid=own.pid, started=None).lives


def test_an_owner_that_cannot_be_looked_for_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    own, gone = Owner.of(OWN), Owner(pid=os.getpid(), started=None)

    def no_descriptors(path: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", no_descriptors)
        unknown = Owner.of(OWN)
        assert (own.lives, unknown.lives, gone.lives) == (True, True, False)
    assert (unknown.started, unknown.lives) == (UNKNOWN, True)
    assert not Owner(pid=2**31 - 1, started=UNKNOWN).lives


def test_a_zombie_does_not_live() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        owner = Owner.of(f"torch_{process.pid}_1_2")
        assert owner.lives
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{process.pid}").exists()
        assert not owner.lives
    assert Owner.of(f"torch_{process.pid}_1_2").started is None


def test_a_segment_goes_with_an_owner_whose_number_is_anothers_by_now(tmp_path: Path) -> None:
    path = a_segment(tmp_path, users=2)
    now = Owner.of(OWN)
    assert now.started is not None
    give_back({OWN: 1}, owners={OWN: now}, directory=tmp_path)
    assert users_of(path) == 1
    give_back({OWN: 0}, owners={OWN: Owner(pid=now.pid, started=1)}, directory=tmp_path)
    assert not path.exists()


def test_a_segment_stays_while_a_process_has_it_that_got_it_from_its_owner(tmp_path: Path) -> None:
    path, gone = a_segment(tmp_path, users=3), Owner(pid=os.getpid(), started=1)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert is_mapped(path)
        give_back({OWN: 1}, owners={OWN: gone}, directory=tmp_path)
        assert users_of(path) == 2
    assert not is_mapped(path)
    give_back({OWN: 1}, owners={OWN: gone}, directory=tmp_path)
    assert not path.exists()


@pytest.mark.usefixtures("by_name", "no_segment_left")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_tensors_of_one_storage_that_were_serialised_one_by_one(protocol: int) -> None:
    """As verl does it: each part is a payload of its own, and has a reference of its own."""
    whole, local = X.clone(), local_class()
    with standing(LOCAL_MODULES[0], LocalSerializedTensor=local):
        payload = forking(
            [(f"w{at}", local([forking(whole[at : at + 4], protocol)]))
             for at in range(3)], protocol,
        )  # fmt: skip
    path = segment_of(whole)
    assert users_of(path) == 4
    sent = decode(payload)
    assert sent.references == {path.name: 3}
    with opened(sent) as payloads:
        assert len(payloads) == 3
    assert users_of(path) == 1


@pytest.mark.usefixtures("by_name", "no_segment_left")
def test_a_record_that_is_named_often_came_with_one() -> None:
    whole = X.clone()
    sent = decode(forking([("a", whole), ("b", whole[1:]), ("c", whole.view(3, 4).t())]))
    assert sent.references == {segment_of(whole).name: 1}
    assert handles_in(Items([1, "torch_1_2_3", b"/torch_1_2_3", None])) == {}
    with opened(sent):
        pass


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


@pytest.mark.usefixtures("by_name", "no_segment_left")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_names_are_found_without_reading(protocol: int) -> None:
    tensors = [(f"w{at}", torch.zeros(3)) for at in range(30)]
    payload = forking(tensors, protocol)
    wanted = {segment_of(tensor).name: 1 for _, tensor in tensors}
    assert names_in([b64(payload)]) == wanted
    assert names_in([b64(b64(payload).encode())]) == wanted
    assert names_in([b64(payload), b64(payload)]) == dict.fromkeys(wanted, 2)
    found = names_in([b64(payload[: len(payload) // 2])])
    assert 12 <= len(found) <= 18
    assert found.keys() <= wanted.keys()
    with opened(decode(payload)):
        pass


def test_names_on_the_edge_of_a_piece_are_found_once() -> None:
    handle = b"/tmp/torch-shm-dir-abcdef/manager.sock\x94C\x19/torch_1_22222_3\x94"
    for padding in range(0, 200, 7):
        payload = bytes(3 * 2**18 - padding) + handle + bytes(3 * 2**18 - 60) + handle
        assert names_in([b64(payload)]) == {"torch_1_22222_3": 2}, padding


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"/torch_1_2_3.", b"manager.sock/torch_1_2_3.", b"/manager.sock\x94/torch_1_2_3",
        b"/manager.sock\x94/torch_1_2_3_", b"/manager.sock\x94/torch_1.",
        b"/manager.sock" + bytes(65) + b"/torch_1_2_3.",
    ],
)  # fmt: skip
def test_what_is_no_whole_handle_names_nothing(payload: bytes) -> None:
    assert names_in([b64(payload)]) == {}


def lines(text: str) -> str:
    return "\n".join(text[at : at + 76] for at in range(0, len(text), 76))


FOR_URLS = str.maketrans("+/", "-_")

SPELLINGS: dict[str, Callable[[str], bytes | bytearray]] = {
    "JSON": lambda text: json.dumps({"x": [{"y": text}, 1]}).encode(),
    "cut off": lambda text: json.dumps([text])[:-8].encode(),
    "slashes escaped": lambda text: json.dumps([text]).replace("/", "\\/").encode(),
    "all of it escaped": lambda text: "".join(
        f"\\u{ord(one):04x}" if one in "/+=" else one for one in json.dumps(text)
    ).encode(),
    "lines": lambda text: json.dumps([lines(text)]).encode(),
    "twice": lambda text: json.dumps([b64(text.encode())]).encode(),
    "for URLs": lambda text: json.dumps([text.translate(FOR_URLS)]).encode(),
    "UTF-16": lambda text: json.dumps([text]).encode("utf-16"),
    "UTF-16, without a mark": lambda text: json.dumps([text]).encode("utf-16-be"),
    "a character too many": lambda text: json.dumps([f"{text[:9]}!{text[9:]}"]).encode(),
    "a bytearray": lambda text: bytearray(text.encode()),
}


@pytest.mark.usefixtures("by_name", "no_segment_left")
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_names_are_found_in_a_body_that_is_refused(spelling: str) -> None:
    tensors = [(f"w{at}", torch.zeros(3)) for at in range(7)]
    payload = forking(tensors)
    body = SPELLINGS[spelling](b64(payload))
    wanted = {segment_of(tensor).name: 1 for _, tensor in tensors}
    assert names_in_body(body) == wanted
    with opened(decode(payload)):
        pass


@pytest.mark.usefixtures("by_name", "no_segment_left")
@pytest.mark.parametrize("at", [0, 5, 200, -1])
def test_a_text_that_is_nearly_base64_still_names_them(at: int) -> None:
    tensors = [(f"\xfb\xff\xfe{at}", torch.zeros(3)) for at in range(7)]
    payload = forking(tensors)
    text = b64(payload)
    assert "+" in text or "/" in text
    wanted = {segment_of(tensor).name: 1 for _, tensor in tensors}
    for near in (
        text.translate(FOR_URLS), f"{text[:at]}!{text[at:]}", f"{text[:at]}\xe9{text[at:]}",
        f"{text[:at]}={text[at:]}", text.rstrip("="), text.rstrip("=") + "=====",
    ):  # fmt: skip
        assert names_in([near]) == wanted, near[:20]
    # A character in the place of another may be one of a name.
    replaced = names_in([f"{text[:5]}!{text[6:]}"])
    assert replaced == wanted
    with opened(decode(payload)):
        pass


@pytest.mark.usefixtures("by_name", "no_segment_left")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_part_for_a_rank_that_is_base64_itself_names_them(protocol: int) -> None:
    inner, plain = torch.zeros(3), torch.zeros(3)
    local = local_class()
    with standing(LOCAL_MODULES[0], LocalSerializedTensor=local):
        part = b64(forking(inner, protocol)).encode()
        payload = forking([("a", local([part])), ("b", plain)])
    received = Received.read([b64(payload)])
    assert received.sent.references == {segment_of(one).name: 1 for one in (inner, plain)}
    assert [users_of(segment_of(one)) for one in (inner, plain)] == [2, 2]
    received.release()
    assert [users_of(segment_of(one)) for one in (inner, plain)] == [1, 1]
    del received  # its refusal has a traceback, which has this frame and its tensors


@given(st.lists(st.sampled_from(
    [b"a" * 130, b"\\", b"u00", b"2f", b"n", b"/", b'"', b"Z0F", b"\xff", b"=", b"+", b" "]
)))  # fmt: skip
def test_any_body_can_be_searched(parts: list[bytes]) -> None:
    assert names_in_body(b"".join(parts)) == {}


def test_a_body_that_names_nothing_is_searched_once() -> None:
    for body in (b"", b"a" * 127, b"\\" * 200, b"a," * 2**19, (b"a" * 127 + b",") * 2**13):
        assert names_in_body(body) == {}


@pytest.mark.parametrize("text", ["", "a", "é" * 8, "####", "=" * 8, "a" * 5, "Z0F#", "\ud800" * 4])
def test_what_is_no_base64_names_nothing(text: str) -> None:
    assert names_in([text]) == {}


HANDLES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "the counter": lambda path: {},
    "a place past the end": lambda path: {"ref_counter_offset": COUNTERS},
    "a segment that is not there": lambda path: {"ref_counter_handle": b"/torch_1_2_3"},
    "somebody's weights": lambda path: {"ref_counter_handle": a_segment(
        path.parent, users=2, name="torch_5_6_7").name.encode()},
}  # fmt: skip


@pytest.mark.parametrize("case", HANDLES)
def test_a_counter_of_device_memory_goes_down_and_nothing_else_is_written_to(
    tmp_path: Path, case: str
) -> None:
    path = tmp_path / "torch_1_2_4"
    counters = torch.full((COUNTERS,), 2, dtype=torch.int64)
    path.write_bytes(bytes(HEADER_BYTES) + counters.numpy().tobytes())
    said: dict[str, Any] = {
        "device": 0, "handle": bytes(66), "size_bytes": 4, "offset_bytes": 0,
        "ref_counter_handle": b"/torch_1_2_4", "ref_counter_offset": 7,
        "event_handle": bytes(64), "event_sync_required": False,
    } | HANDLES[case](path)  # fmt: skip
    before = {one: one.read_bytes() for one in tmp_path.iterdir()}
    storage = CudaStorage(**said)
    if case == "the counter":
        assert counter_segment(storage, tmp_path) == path.name
        for left in (1, 0, 0):
            give_back_on_device([storage, storage], directory=tmp_path)
            at = HEADER_BYTES + 7 * 8
            counted = path.read_bytes()
            assert int.from_bytes(counted[at : at + 8], "little") == left
            assert counted[:at] == before[path][:at]
            assert counted[at + 8 :] == before[path][at + 8 :]
        return
    give_back_on_device([storage], directory=tmp_path)
    assert {one: one.read_bytes() for one in tmp_path.iterdir()} == before


def test_a_payload_that_was_refused_opens_as_its_refusal() -> None:
    received = Received.refused(b"x")
    assert repr(received) == "<Received refused>"
    with pytest.raises(UpdateRejected, match="nothing was read"), received.opened():
        raise AssertionError("was opened")
    received.release()
    assert repr(received) == "<Received refused, let go>"
