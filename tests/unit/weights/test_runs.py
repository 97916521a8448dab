"""Tensors side by side in a file: one read for many, and the bytes of each in its place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hotswap.types import Payload, TensorSpec
from hotswap.weights import runs
from hotswap.weights.checkpoint import Checkpoint
from hotswap.weights.runs import bucket_jobs

Tensors = dict[str, torch.Tensor]
Item = tuple[torch.Tensor, Payload, tuple[slice, ...]]


@contextmanager
def payloads(directory: Path, *files: Tensors) -> Iterator[dict[str, Payload]]:
    (directory / "config.json").write_text(json.dumps({}))
    weight_map: dict[str, str] = {}
    for at, tensors in enumerate(files):
        save_file(tensors, directory / f"{at}.safetensors")
        weight_map |= dict.fromkeys(tensors, f"{at}.safetensors")
    index = json.dumps({"weight_map": weight_map})
    (directory / "model.safetensors.index.json").write_text(index)
    with Checkpoint.open(directory) as checkpoint:
        yield {name: payload for bucket in checkpoint.buckets() for name, payload in bucket}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many buffers each read took."""
    seen: list[int] = []
    preadv = os.preadv

    def counted(fd: int, buffers: list[memoryview], offset: int) -> int:
        seen.append(len(buffers))
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", counted)
    return seen


def tensors_of(*names: str, size: int = 8) -> Tensors:
    return {name: torch.randn(size) for name in names}


def outs_for(tensors: Tensors) -> Tensors:
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}


def run(items: list[Item], reads: list[int]) -> list[int]:
    """Run the jobs; the buffers of each read that they made."""
    reads.clear()
    for job in bucket_jobs(items):
        job()
    return list(reads)


def test_neighbours_are_one_read(tmp_path: Path, reads: list[int]) -> None:
    tensors = tensors_of(*"abcde")
    outs = outs_for(tensors)
    with payloads(tmp_path, tensors) as given:
        assert run([(outs[name], payload, ()) for name, payload in given.items()], reads) == [5]
    for name, tensor in tensors.items():
        assert torch.equal(outs[name], tensor)


def test_a_gap_and_another_file_begin_anew(tmp_path: Path, reads: list[int]) -> None:
    tensors = tensors_of(*"abcde")
    outs = outs_for(tensors)
    first = {name: tensors[name] for name in "abc"}
    with payloads(tmp_path, first, {name: tensors[name] for name in "de"}) as given:
        items: list[Item] = [(outs[name], given[name], ()) for name in "acde"]
        assert run(items, reads) == [1, 1, 2]
        # Backwards nothing follows anything.
        assert run(items[::-1], reads) == [1, 1, 1, 1]
    for name in "acde":
        assert torch.equal(outs[name], tensors[name])
    assert not outs["b"].any()


def test_what_is_cast_cut_empty_or_not_from_a_file_goes_its_own_way(
    tmp_path: Path, reads: list[int]
) -> None:
    tensors = tensors_of("a", "b", "d", "e") | {"c": torch.zeros(0)}
    with payloads(tmp_path, tensors) as given:
        cast, half = torch.zeros(8, dtype=torch.bfloat16), torch.zeros(4)
        copied, strided = torch.zeros(8), torch.zeros(8, 2)[:, 0]
        alone = torch.zeros(8)
        items: list[Item] = [
            (alone, given["a"], ()),
            (cast, given["b"], ()),
            (torch.zeros(0), given["c"], ()),
            (half, given["d"], (slice(4, 8),)),
            (strided, given["e"], ()),
            (copied, torch.ones(8), ()),
        ]
        run(items, reads)
    assert torch.equal(alone, tensors["a"])
    assert torch.equal(cast, tensors["b"].bfloat16())
    assert torch.equal(half, tensors["d"][4:8])
    assert torch.equal(strided, tensors["e"])
    assert torch.equal(copied, torch.ones(8))


def test_a_run_is_bounded_in_bytes_and_in_tensors(
    tmp_path: Path, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = tensors_of(*"abcdefg")
    outs = outs_for(tensors)
    with payloads(tmp_path, tensors) as given:
        items: list[Item] = [(outs[name], payload, ()) for name, payload in given.items()]
        monkeypatch.setattr(runs, "PIECE_BYTES", 3 * 32)
        assert run(items, reads) == [3, 3, 1]
        monkeypatch.setattr(runs, "_MAX_TENSORS", 2)
        assert run(items, reads) == [2, 2, 2, 1]
    for name, tensor in tensors.items():
        assert torch.equal(outs[name], tensor)


def test_a_file_that_changes_is_an_error_that_names_a_tensor(tmp_path: Path) -> None:
    tensors = tensors_of(*"abc")
    outs = outs_for(tensors)
    with payloads(tmp_path, tensors) as given:
        [job] = bucket_jobs([(outs[name], payload, ()) for name, payload in given.items()])
        file = tmp_path / "0.safetensors"
        os.truncate(file, file.stat().st_size - 33)
        with pytest.raises(OSError, match=r"tensor 'a': 0\.safetensors was written to"):
            job()


class Coming:
    """A tensor that can be read once, after those that come before it."""

    in_order = True

    def __init__(self, name: str, log: list[str]) -> None:
        self.spec = TensorSpec(name=name, dtype=torch.float32, shape=(2,))
        self._log = log

    def read_into(self, out: torch.Tensor) -> None:
        self._log.append(self.spec.name)
        out.fill_(float(len(self._log)))


def test_what_comes_in_order_is_one_job() -> None:
    log = list[str]()
    outs = {name: torch.zeros(2) for name in "cab"}
    copied = torch.zeros(2)
    jobs = bucket_jobs(
        [
            *((out, Coming(name, log), ()) for name, out in outs.items()),
            (copied, torch.ones(2), ()),
        ]
    )
    assert len(jobs) == 2
    for job in jobs:
        job()
    assert log == ["c", "a", "b"]
    assert [out.tolist() for out in outs.values()] == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    assert copied.tolist() == [1.0, 1.0]
