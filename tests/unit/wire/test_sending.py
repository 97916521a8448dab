"""What the helpers for trainers write: ours reads it, and so does torch's own unpickler."""

from __future__ import annotations

import base64
import errno
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from hotswap.push import SharedTensors
from hotswap.wire import (
    FLATTENED,
    CudaStorage,
    decode,
    flattened_bucket,
    named_tensors,
    payload_bytes,
    per_rank,
)
from hotswap.wire.sending import _plain
from tests.unit.wire.conftest import own_segments
from tests.unit.wire.senders import BUCKET_MODULES, LOCAL_MODULES, metadata_class, standing
from tests.unit.wire.test_bucket import MIXED, same_bits
from tests.unit.wire.test_tensors import LAYOUTS, X, received

pytestmark = pytest.mark.usefixtures("no_segment_left")


def unpickled(payload: str) -> Any:
    return pickle.loads(base64.b64decode(payload))  # noqa: S301


def test_a_bucket_is_read_here() -> None:
    with flattened_bucket(MIXED) as text:
        got = received(payload_bytes(text), load_format=FLATTENED)
    assert list(got) == [name for name, _ in MIXED]
    for name, tensor in MIXED:
        assert same_bits(got[name], tensor), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_list_is_read_here_and_by_torch(layout: str) -> None:
    tensor = LAYOUTS[layout](X)
    with named_tensors([("w", tensor), ("p", torch.nn.Parameter(X))]) as text:
        got = received(payload_bytes(text))
        theirs = dict(unpickled(text))
        for read in (got, theirs):
            assert torch.equal(read["w"], tensor)
            assert torch.equal(read["p"], X)
        del theirs, read


def test_only_the_bytes_that_are_needed_are_shared() -> None:
    big = torch.zeros(1000, 1000)
    before = own_segments()
    with named_tensors([("w", big[:2, :3])]):
        (new,) = own_segments() - before
        size = (Path("/dev/shm") / new).stat().st_size
    assert size == 64 + 24


@pytest.mark.parametrize("module", BUCKET_MODULES[:1])
def test_a_bucket_is_read_by_torch(module: str) -> None:
    cls = metadata_class()
    with standing(module, FlattenedTensorMetadata=cls), flattened_bucket(MIXED) as text:
        value = unpickled(text)
        flat = value["flattened_tensor"]
        assert flat.dtype is torch.uint8
        for entry, (name, tensor) in zip(value["metadata"], MIXED, strict=True):
            assert (entry.name, entry.shape, entry.dtype) == (name, tensor.shape, tensor.dtype)
            assert entry.numel == entry.end_idx - entry.start_idx
            piece = flat[entry.start_idx : entry.end_idx]
            raw = tensor.contiguous().view(-1).view(torch.uint8)
            assert torch.equal(piece, raw)
        del value, flat, piece


def test_an_empty_bucket() -> None:
    with flattened_bucket([]) as text:
        assert received(payload_bytes(text), load_format=FLATTENED) == {}
        value = unpickled(text)
    assert value["flattened_tensor"].shape == (0,)
    assert value["metadata"] == []


def test_a_tensor_for_each_rank() -> None:
    @dataclass
    class LocalSerializedTensor:
        values: list[bytes]

    parts = [torch.full((2, 2), float(rank)) for rank in range(3)]
    with per_rank([("w", parts)]) as text:
        for rank, part in enumerate(parts):
            got = received(payload_bytes(text), rank=rank, world_size=3)
            assert torch.equal(got["w"], part)
        with standing(LOCAL_MODULES[0], LocalSerializedTensor=LocalSerializedTensor):
            ((name, local),) = unpickled(text)
        tensor = pickle.loads(local.values[1])  # noqa: S301
        assert name == "w"
        assert torch.equal(tensor, parts[1])
        del tensor


def test_a_failure_within_the_block_leaves_nothing() -> None:
    with (
        pytest.raises(KeyError),
        named_tensors([("w", X)]),
        flattened_bucket([("w", X)]),
    ):
        raise KeyError("bad")


def test_a_full_shared_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs("/dev/shm")
    full = os.statvfs_result([*real[:4], 0, *real[5:]])
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    with (
        pytest.raises(OSError, match="has 0 bytes left and the tensors take 840"),
        named_tensors([("w", X)]),
    ):
        raise AssertionError("was shared")


NO_SPACE = os.strerror(errno.ENOSPC)


@pytest.mark.parametrize(
    ("kind", "said", "place"),
    [
        (OSError, (errno.ENOSPC, NO_SPACE), (os, "posix_fallocate")),
        # As torch says it.
        (
            RuntimeError,
            (f"unable to allocate shared memory(shm) for file <x>: {NO_SPACE} (28)",),
            (torch.UntypedStorage, "_new_using_filename_cpu"),
        ),
    ],
)
def test_one_that_others_have_filled_meanwhile_is_an_error_too(
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Exception],
    said: tuple[object, ...],
    place: tuple[object, str],
) -> None:
    """There was room when it was looked for; a page too many would be a SIGBUS."""

    def no_room(*arguments: object) -> None:
        raise kind(*said)

    before = own_segments()
    monkeypatch.setattr(*place, no_room)
    with (
        pytest.raises(OSError, match="bytes left and the tensors take 840"),
        named_tensors([("w", X)]),
    ):
        raise AssertionError("was shared")
    with pytest.raises(OSError, match="bytes left and the tensors take"):
        SharedTensors.of([("w", X)])
    assert own_segments() <= before


def test_any_other_failure_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(size_bytes: int) -> None:
        raise RuntimeError("no torch_shm_manager")

    monkeypatch.setattr(torch.UntypedStorage, "_new_using_filename_cpu", broken)
    with pytest.raises(RuntimeError, match="no torch_shm_manager"), named_tensors([("w", X)]):
        raise AssertionError("was shared")


def test_tensors_of_several_devices_make_no_bucket() -> None:
    mixed = [("a", X), ("b", X.to("meta"))]
    with (
        pytest.raises(ValueError, match="lie on cpu, meta, wanted one device"),
        flattened_bucket(mixed),
    ):
        raise AssertionError("was shared")


def test_arguments_of_a_handle_become_records() -> None:
    with pytest.raises(TypeError, match="stands in no handle"):
        _plain(1.5)


SENDER = """
import sys, torch
from hotswap.wire import flattened_bucket
with flattened_bucket([("w", torch.arange(6.0))]) as text:
    print(text, flush=True)
    sys.stdin.read()
"""


def test_a_sender_that_is_killed_leaves_what_the_reader_removes() -> None:
    with subprocess.Popen([sys.executable, "-c", SENDER], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as sender:  # fmt: skip
        assert sender.stdout is not None
        text = sender.stdout.readline().strip()
        sender.kill()
        sender.wait()
    got = received(payload_bytes(text), load_format=FLATTENED)
    assert torch.equal(got["w"], torch.arange(6.0))
    assert not list(Path("/dev/shm").glob(f"torch_{sender.pid}_*"))


@pytest.mark.parametrize("uuid", [None, "a1b2c3d4-0000-1111-2222-333344445555"])
def test_a_tensor_on_a_device_is_named_by_its_handle(
    monkeypatch: pytest.MonkeyPatch, uuid: str | None
) -> None:
    """As torch hands it out where there is a device; here there is none."""

    def handle(tensor: torch.Tensor) -> tuple[object, tuple[object, ...]]:
        size_bytes = tensor.numel() * tensor.element_size()
        return None, (
            type(tensor), tensor.size(), tensor.stride(), tensor.storage_offset(),
            torch.storage.TypedStorage, tensor.dtype, 0 if uuid is None else uuid, bytes(66),
            size_bytes, 512, False, b"/torch_1_2", 0, bytes(64), True,
        )  # fmt: skip

    monkeypatch.setattr(torch.multiprocessing.reductions, "reduce_tensor", handle)
    pair = [("a", torch.empty(3, 2, device="meta")), ("b", torch.empty(0, device="meta"))]
    with flattened_bucket(pair) as text:
        bucket = decode(payload_bytes(text), load_format=FLATTENED)
    with named_tensors(pair) as text:
        listed = decode(payload_bytes(text))
    for sent in (bucket, listed):
        storage = sent.tensors["a"].storage
        assert isinstance(storage, CudaStorage)
        assert storage.device == (uuid or 0)
        assert storage.size_bytes == 24
        assert sent.segments == frozenset()
