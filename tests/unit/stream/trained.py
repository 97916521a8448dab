"""What a trainer has, for the tests of ``Publisher``: torch tensors that change in each step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch

from hotswap.stream import Publisher, pull
from tests.unit.stream.streams import contents_of

State = dict[str, torch.Tensor]

DTYPES = {
    "embed.weight": torch.bfloat16,
    "layers.0.weight": torch.float32,
    "layers.0.scale": torch.float8_e4m3fn,
    "layers.1.weight": torch.float64,
    "layers.1.bias": torch.float16,
}


def first_state(*, size: int = 700) -> State:
    """The weights that training begins with; one tensor is empty and one has no dimension."""
    source = torch.Generator().manual_seed(0)
    state = {
        name: torch.randn(7, size // 7, generator=source).to(dtype)
        for name, dtype in DTYPES.items()
    }
    return state | {"empty": torch.zeros(0, 3), "step": torch.tensor(0, dtype=torch.int64)}


def after_step(state: Mapping[str, torch.Tensor], step: int, *, share: float = 0.02) -> State:
    """A copy of which about ``share`` of the elements of most tensors are others."""
    source = torch.Generator().manual_seed(step)
    after = {name: value.clone() for name, value in state.items()}
    for name in DTYPES:
        if (step + len(name)) % 5 == 0:
            continue
        flat = after[name].reshape(-1).view(torch.uint8)
        at = torch.rand(flat.shape, generator=source) < share
        flat[at] ^= 1
    after["step"] = torch.tensor(step, dtype=torch.int64)
    return after


def bytes_in(state: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
    """Every tensor's bytes."""
    return {
        name: value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, value in state.items()
    }


def write_base(directory: Path, state: Mapping[str, torch.Tensor]) -> Path:
    """``state`` as a checkpoint with a configuration beside it."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text('{"model_type": "test"}')
    safetensors.torch.save_file(dict(state), directory / "model.safetensors")
    return directory


def pulled(
    root: Path, source: Path, version: int, *, base: Path, name: str = "local"
) -> dict[str, bytes]:
    """The bytes that a reader has after a pull of ``version``."""
    pull(root / name, source, version, base_dir=base, threads=1)
    return contents_of(root / name)


class Trainer:
    """A base, a source, and the state of every version."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = root / "source"
        self.states: list[State] = [first_state()]
        self.base = write_base(root / "base", self.states[0])

    def step(self, publisher: Publisher) -> None:
        """Train and publish."""
        state = after_step(self.states[-1], len(self.states))
        published = publisher.publish(state)
        self.states.append(state)
        assert published.version == publisher.version == len(self.states) - 1

    def check(self, version: int | None = None, *, name: str = "local") -> None:
        """A reader gets every byte of ``version``, or of the last one."""
        number = len(self.states) - 1 if version is None else version
        got = pulled(self.root, self.source, number, base=self.base, name=name)
        assert got == bytes_in(self.states[number])
