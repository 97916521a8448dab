"""Payloads as torch and pickle write them, with stand-ins for the classes of sglang."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any

import torch

__all__ = [
    "BUCKET_MODULES",
    "LOCAL_MODULES",
    "forking",
    "local_class",
    "metadata_class",
    "flattened",
    "sharing",
    "standing",
]

BUCKET_MODULES = (
    "sglang.srt.weight_sync.tensor_bucket",
    "sglang.srt.model_executor.model_runner",
    "gr_inference.gr_serving.weight_ipc",
)
LOCAL_MODULES = (
    "sglang.srt.model_executor.model_runner_components.weight_updater",
    "sglang.srt.model_executor.model_runner",
    "gr_inference.gr_serving.weight_ipc",
)


@contextmanager
def sharing(strategy: str) -> Iterator[None]:
    """torch shares tensors in this way for as long as the block lasts."""
    current: Callable[[], str] = torch.multiprocessing.get_sharing_strategy
    choose: Callable[[str], None] = torch.multiprocessing.set_sharing_strategy
    before = current()
    choose(strategy)
    try:
        yield
    finally:
        choose(before)


def forking(value: object, protocol: int | None = None) -> bytes:
    """``value`` as a trainer's ``MultiprocessingSerializer`` writes it."""
    out = io.BytesIO()
    ForkingPickler(out, protocol).dump(value)
    return out.getvalue()


@contextmanager
def standing(module: str, **members: Any) -> Iterator[None]:
    """A module of that name, with these members, for as long as the block lasts."""
    parts = module.split(".")
    names = [".".join(parts[: n + 1]) for n in range(len(parts))]
    before = {name: sys.modules.get(name) for name in names}
    try:
        for name in names:
            sys.modules[name] = ModuleType(name)
        for name, member in members.items():
            member.__module__ = module
            member.__qualname__ = name
            setattr(sys.modules[module], name, member)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = old


def metadata_class() -> type[Any]:
    """A new class with the fields of sglang's metadata."""

    @dataclass
    class FlattenedTensorMetadata:
        name: str
        shape: torch.Size
        dtype: torch.dtype
        start_idx: int
        end_idx: int
        numel: int

    return FlattenedTensorMetadata


def local_class() -> type[Any]:
    """A new class with the field of sglang's ``LocalSerializedTensor``."""

    @dataclass
    class LocalSerializedTensor:
        values: list[bytes]

    return LocalSerializedTensor


def flattened(
    tensors: Sequence[tuple[str, torch.Tensor]], metadata: Callable[..., Any]
) -> dict[str, object]:
    """The object that sglang's clients serialise for a flattened bucket."""
    entries, pieces, at = [], [], 0
    for name, tensor in tensors:
        raw = tensor.detach().contiguous().view(-1).view(torch.uint8)
        end = at + len(raw)
        entries.append(metadata(name, tensor.shape, tensor.dtype, at, end, len(raw)))
        pieces.append(raw)
        at = end
    flat = torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.uint8)
    return {"flattened_tensor": flat, "metadata": entries}


PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
