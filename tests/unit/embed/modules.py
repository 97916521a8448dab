"""Modules of an embedder, and checkpoints for them: every element is one number."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Collection, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file
from torch import nn

__all__ = ["LIMIT_S", "checkpoint", "filled", "of_another", "output"]

T = TypeVar("T")

LIMIT_S = 30.0
"""Longer than anything here takes; what it bounds would hang."""


def filled(value: float) -> nn.Sequential:
    """Two layers whose every weight is ``value``; no biases."""
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    with torch.no_grad():
        for weight in module.parameters():
            weight.fill_(value)
    return module


def checkpoint(directory: Path, value: float, *, names: Collection[str] | None = None) -> str:
    """Write the checkpoint of ``filled(value)``, or those tensors of it alone; its path."""
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    tensors = filled(value).state_dict().items()
    wanted = {name: tensor for name, tensor in tensors if names is None or name in names}
    save_file(wanted, directory / "model.safetensors")
    return str(directory)


def output(module: nn.Module) -> float:
    """One number of a forward pass: 16 times the square of the weights' number."""
    with torch.inference_mode():
        return float(module(torch.ones(1, 4))[0, 0])


def of_another(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task that is no child of the caller: it is inside no pass that the caller is in."""
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())
