"""Shared memory is read without being mapped, and let go on every path."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hotswap.errors import UpdateRejected
from hotswap.push import NONCE_BYTES, DescribedTensor, Description, SegmentNotSeen
from hotswap.wire import PayloadRefused, Sent, SentTensor, SharedStorage, decode, opened
from hotswap.wire.references import HEADER_BYTES
from hotswap.wire.sent import row_major
from tests.unit.wire.senders import forking
from tests.unit.wire.test_tensors import value_of

DATA = torch.arange(12, dtype=torch.float32)
OWNER = os.getpid()


@pytest.fixture(autouse=True)
def no_descriptor_left() -> Iterator[None]:
    # A sender keeps the socket of its torch_shm_manager, from its first segment on.
    torch.UntypedStorage._new_using_filename_cpu(8)
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) <= before


def a_segment(directory: Path, *, owner: int = OWNER, users: int = 2) -> SharedStorage:
    """A segment as torch lays it out, in a directory of the test."""
    name = f"torch_{owner}_17_0"
    header = users.to_bytes(4, "little", signed=True).ljust(HEADER_BYTES, b"\0")
    (directory / name).write_bytes(header + DATA.numpy().tobytes())
    return SharedStorage(name=name, size_bytes=48)


def sent(storage: SharedStorage, *shape: int, strides: tuple[int, ...] | None = None) -> SentTensor:
    return SentTensor(
        dtype=torch.float32,
        shape=shape,
        strides=strides or row_major(shape),
        offset_bytes=0,
        storage=storage,
    )


def a_list(**tensors: SentTensor) -> Sent:
    storages = [tensor.storage for tensor in tensors.values()]
    segments = frozenset(held for held in storages if isinstance(held, SharedStorage))
    references = {storage.name: 1 for storage in segments}
    return Sent(tensors=tensors, segments=segments, references=references)


def users_of(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[:4], "little", signed=True)


def test_values_at_any_layout(tmp_path: Path) -> None:
    storage = a_segment(tmp_path)
    tensors = a_list(a=sent(storage, 3, 4), b=sent(storage, 4, 3, strides=(1, 4)))
    with opened(tensors, directory=tmp_path) as payloads:
        assert torch.equal(value_of(payloads["a"]), DATA.view(3, 4))
        assert torch.equal(value_of(payloads["b"]), DATA.view(3, 4).t())
        assert repr(payloads["b"]) == f"<StridedTensor b [4, 3] float32 in {storage.name}>"
    assert payloads == {}  # so that whoever keeps it keeps nothing of the sender's


def test_the_reference_is_given_back_and_the_segment_stays_its_owners(tmp_path: Path) -> None:
    storage = a_segment(tmp_path, users=3)
    path = tmp_path / storage.name
    for left in (2, 1, 1):  # the last is the owner's own
        with opened(a_list(w=sent(storage, 12), v=sent(storage, 4)), directory=tmp_path):
            pass
        assert users_of(path) == left


def test_a_request_that_was_sent_twice_reads_on_when_the_other_has_ended(tmp_path: Path) -> None:
    storage = a_segment(tmp_path, users=3)
    written = (tmp_path / storage.name).stat().st_mtime_ns
    again = a_list(w=sent(storage, 12))
    with opened(again, directory=tmp_path) as payloads:
        with opened(again, directory=tmp_path):
            pass
        assert torch.equal(value_of(payloads["w"]), DATA)
    assert users_of(tmp_path / storage.name) == 1
    assert (tmp_path / storage.name).stat().st_mtime_ns == written


def test_it_is_given_back_after_a_failure(tmp_path: Path) -> None:
    storage = a_segment(tmp_path)
    with (
        pytest.raises(KeyError, match="bad"),
        opened(a_list(w=sent(storage, 12)), directory=tmp_path),
    ):
        raise KeyError("bad")
    assert users_of(tmp_path / storage.name) == 1


def test_it_is_given_back_when_another_is_refused(tmp_path: Path) -> None:
    storage = a_segment(tmp_path)
    missing = SharedStorage(name="torch_1_2_3", size_bytes=48)
    tensors = a_list(w=sent(storage, 12), v=sent(missing, 12))
    with (
        pytest.raises(UpdateRejected, match="torch_1_2_3: cannot be read"),
        opened(tensors, directory=tmp_path),
    ):
        raise AssertionError("was opened")
    assert users_of(tmp_path / storage.name) == 1


def test_a_segment_whose_owner_has_ended_is_removed(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                           check=True, capture_output=True, text=True)  # fmt: skip
    storage = a_segment(tmp_path, owner=int(ended.stdout))
    with opened(a_list(w=sent(storage, 12)), directory=tmp_path) as payloads:
        assert torch.equal(value_of(payloads["w"]), DATA)
    assert list(tmp_path.iterdir()) == []


def test_a_segment_that_is_gone_at_the_end_is_let_go(tmp_path: Path) -> None:
    storage = a_segment(tmp_path)
    with opened(a_list(w=sent(storage, 12)), directory=tmp_path):
        (tmp_path / storage.name).unlink()


@pytest.mark.parametrize("size", [0, 63, 64 + 47])
def test_a_segment_smaller_than_was_said(tmp_path: Path, size: int) -> None:
    storage = a_segment(tmp_path)
    os.truncate(tmp_path / storage.name, size)
    with (
        pytest.raises(PayloadRefused, match=f"has room for {max(size - 64, 0)} bytes"),
        opened(a_list(w=sent(storage, 12)), directory=tmp_path),
    ):
        raise AssertionError("was opened")


@pytest.mark.parametrize("strides", [(1,), (2,)])
def test_a_segment_that_is_cut_short_meanwhile_is_an_error(
    tmp_path: Path, strides: tuple[int]
) -> None:
    """Mapped, it would end this process."""
    storage = a_segment(tmp_path)
    tensors = a_list(w=sent(storage, 6, strides=strides))
    with opened(tensors, directory=tmp_path) as payloads:
        os.truncate(tmp_path / storage.name, 70)
        with pytest.raises(OSError, match="tensor 'w': torch_"):
            value_of(payloads["w"])


@pytest.mark.parametrize("kind", ["fifo", "directory", "socket", "link", "link to a segment"])
def test_what_is_no_file_is_refused_and_not_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "torch_1_2_3"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "link":
        (tmp_path / "secret").write_bytes(bytes(1000))
        path.symlink_to(tmp_path / "secret")
    elif kind == "link to a segment":
        path.symlink_to(a_segment(tmp_path).name)
    else:
        os.mknod(path, 0o140600)
    storage = SharedStorage(name=path.name, size_bytes=48)
    with (
        pytest.raises(UpdateRejected, match="not a regular file"),
        opened(a_list(w=sent(storage, 12)), directory=tmp_path),
    ):
        raise AssertionError("was opened")


@pytest.mark.usefixtures("by_name", "no_segment_left")
def test_many_payloads_leave_nothing(tmp_path: Path) -> None:
    for number in range(20):
        tensor = torch.full((64,), float(number))
        payload = forking([("w", tensor)])
        with opened(decode(payload)) as payloads:
            assert torch.equal(value_of(payloads["w"]), tensor)
        del payloads


def test_one_segment_under_two_sizes_is_opened_once(tmp_path: Path) -> None:
    storage = a_segment(tmp_path)
    part = SharedStorage(name=storage.name, size_bytes=16)
    with opened(a_list(w=sent(storage, 12), v=sent(part, 4)), directory=tmp_path) as payloads:
        assert torch.equal(value_of(payloads["v"]), DATA[:4])
        assert torch.equal(value_of(payloads["w"]), DATA)
    assert users_of(tmp_path / storage.name) == 1


def test_strides_without_elements_read_nothing(tmp_path: Path) -> None:
    storage = a_segment(tmp_path)
    with opened(a_list(w=sent(storage, 0, 3, strides=(7, 2))), directory=tmp_path) as payloads:
        assert value_of(payloads["w"]).shape == (0, 3)


def test_a_link_in_the_place_of_a_described_segment_is_not_followed(tmp_path: Path) -> None:
    """Though who sends the description knows how the file begins that it leads to."""
    nonce = bytes(range(NONCE_BYTES))
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(HEADER_BYTES) + nonce + DATA.numpy().tobytes())
    link = Path("/dev/shm") / f"torch_{OWNER}_18_0"
    tensor = DescribedTensor(name="w", dtype="F32", shape=[12], offset=NONCE_BYTES)
    described = Description(
        segment=link.name, size_bytes=NONCE_BYTES + 48, nonce=nonce.hex(), tensors=[tensor]
    )
    link.symlink_to(secret)
    try:
        with (
            pytest.raises(SegmentNotSeen, match="not a regular file"),
            described.push().opened(),
        ):
            raise AssertionError("was opened")
    finally:
        link.unlink()
