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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.unit.wire.senders import (
    BUCKET_MODULES,
    LOCAL_MODULES,
    flattened,
    forking,
    local_class,
    metadata_class,
    sharing,
    standing,
)

__all__ = ["Named", "Shared", "checkpoint", "chunks_of", "main", "say", "sharing_as_sglang"]

Named = list[tuple[str, torch.Tensor]]


class Shared:
    """Payloads, and the tensors that lie in shared memory for them."""

    def __init__(self, metadata: Callable[..., Any], local: Callable[..., Any]) -> None:
        self._metadata = metadata
        self._local = local
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

    def per_rank(self, tensors: Named, *, held: list[torch.Tensor]) -> str:
        """A list of names and, for each rank, a payload of its own; here there is one rank."""
        copies = [(name, tensor.clone()) for name, tensor in tensors]
        held.extend(tensor for _, tensor in copies)
        parts = [(name, self._local([forking(tensor)])) for name, tensor in copies]
        return base64.b64encode(forking(parts)).decode()

    def share(self, chunks: Sequence[Named], *, form: str) -> tuple[int, list[str]]:
        """A payload for each chunk; they are there until ``release`` of the number."""
        number, held = next(self._numbers), list[torch.Tensor]()
        writers = {"flattened_bucket": self.bucket, "per_rank": self.per_rank}
        write = writers.get(form, self.listed)
        payloads = [write(chunk, held=held) for chunk in chunks]
        self._held[number] = held
        return number, payloads

    def release(self, number: int) -> int:
        """Let the tensors go; how many segments are left that nobody holds."""
        del self._held[number]
        used = sum(tensor.numel() > 0 for held in self._held.values() for tensor in held)
        return len(list(Path("/dev/shm").glob(f"torch_{os.getpid()}_*"))) - used


@contextmanager
def sharing_as_sglang() -> Iterator[Shared]:
    """Tensors are shared by name, and sglang's classes stand where a trainer has them."""
    metadata, local = metadata_class(), local_class()
    with (
        sharing("file_system"),
        standing(BUCKET_MODULES[0], FlattenedTensorMetadata=metadata),
        standing(LOCAL_MODULES[1], LocalSerializedTensor=local),
    ):
        yield Shared(metadata, local)


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
    with sharing_as_sglang() as shared:
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
