"""A trainer's process: it shares tensors and writes payloads as torch and sglang do.

It has nothing in common with the server but the payloads. A request is a line of JSON on
standard input: ``{"directory", "chunks", "form"}`` for payloads of a checkpoint, answered
with ``{"number", "payloads"}``, or ``{"release": number}`` once they have been used, answered
with ``{"left"}``: segments of this process beyond those that it still holds. It ends with its
standard input.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.unit.wire.senders import (
    BUCKET_MODULES,
    flattened,
    forking,
    metadata_class,
    sharing,
    standing,
)

__all__ = ["Shared", "checkpoint", "chunks_of", "main", "say"]

Named = list[tuple[str, torch.Tensor]]


class Shared:
    """Payloads, and the tensors that lie in shared memory for them."""

    def __init__(self, metadata: Callable[..., Any]) -> None:
        self._metadata = metadata
        self._held: dict[int, list[torch.Tensor]] = {}
        self._numbers = itertools.count()

    def bucket(self, tensors: Named, *, held: list[torch.Tensor]) -> str:
        """A flattened bucket; an empty one for no tensors."""
        value = flattened(tensors, self._metadata)
        flat = value["flattened_tensor"]
        assert isinstance(flat, torch.Tensor)
        held.append(flat)
        return base64.b64encode(forking(value)).decode()

    def listed(self, tensors: Named, *, held: list[torch.Tensor]) -> str:
        """A list of names and tensors."""
        # torch would move the tensors of the checkpoint themselves into shared memory.
        copies = [(name, tensor.clone()) for name, tensor in tensors]
        held.extend(tensor for _, tensor in copies)
        return base64.b64encode(forking(copies)).decode()

    def share(self, chunks: Sequence[Named], *, form: str) -> tuple[int, list[str]]:
        """A payload for each chunk; they are there until ``release`` of the number."""
        number, held = next(self._numbers), list[torch.Tensor]()
        write = self.bucket if form == "flattened_bucket" else self.listed
        payloads = [write(chunk, held=held) for chunk in chunks]
        self._held[number] = held
        return number, payloads

    def release(self, number: int) -> int:
        """Let the tensors go; how many segments are left that nobody holds."""
        del self._held[number]
        used = sum(tensor.numel() > 0 for held in self._held.values() for tensor in held)
        return len(list(Path("/dev/shm").glob(f"torch_{os.getpid()}_*"))) - used


def checkpoint(directory: Path) -> Named:
    """Every tensor of a checkpoint; for one that is not there, one that no model has."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        return [(str(directory), torch.zeros(1))]
    return [pair for file in files for pair in load_file(file).items()]


def chunks_of(tensors: Named, count: int) -> list[Named]:
    """``tensors`` in ``count`` parts, none of which is empty if there are enough."""
    return [tensors[at::count] for at in range(count)]


def say(answer: object) -> None:
    """One line of JSON, at once."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Answer requests until standard input ends."""
    metadata = metadata_class()
    with ExitStack() as held:
        held.enter_context(sharing("file_system"))
        held.enter_context(standing(BUCKET_MODULES[0], FlattenedTensorMetadata=metadata))
        shared = Shared(metadata)
        for line in sys.stdin:
            asked = json.loads(line)
            if "release" in asked:
                say({"left": shared.release(asked["release"])})
                continue
            tensors = checkpoint(Path(asked["directory"]))
            number, payloads = shared.share(chunks_of(tensors, asked["chunks"]), form=asked["form"])
            say({"number": number, "payloads": payloads})


if __name__ == "__main__":
    main()
