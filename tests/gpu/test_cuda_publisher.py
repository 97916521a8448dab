"""A trainer's tensors on CUDA: what readers get is what they were when ``publish`` was called."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hotswap.stream import Publisher
from hotswap.stream.publisher_tensors import host_tensors
from tests.unit.stream.trained import State, after_step, bytes_in, first_state, pulled, write_base

pytestmark = pytest.mark.gpu


def on_device(state: State) -> State:
    return {name: tensor.to("cuda") for name, tensor in state.items()}


def test_readers_get_what_was_published(tmp_path: Path) -> None:
    states = [first_state()]
    base, source = write_base(tmp_path / "base", states[0]), tmp_path / "source"
    with Publisher(source, run="a", base_dir=base, threads=2) as publisher:
        for step in range(1, 5):
            states.append(after_step(states[-1], step))
            publisher.publish(on_device(states[-1]))
            assert pulled(tmp_path, source, step, base=base) == bytes_in(states[-1])


def test_a_copy_waits_for_what_still_computes_the_tensor() -> None:
    """The copies have a stream of their own, beside the trainer's."""
    big = torch.ones(4096, 4096, device="cuda")
    product = big
    for _ in range(20):
        product = (product @ big) / 4096
    named = {f"t{number}": product + number for number in range(8)}
    for number, tensor in enumerate(host_tensors(named)):
        seen = torch.from_numpy(tensor.content.copy()).view(torch.float32)
        assert torch.equal(seen, torch.full_like(seen, 1.0 + number))


def test_copies_are_pinned_and_their_memory_is_used_again() -> None:
    named = ((f"t{number}", torch.zeros(2**20, device="cuda")) for number in range(64))
    addresses = {tensor.content.ctypes.data for tensor in host_tensors(named)}
    assert len(addresses) < 16
