"""A correct load strategy: a directory with an index and one file a tensor.

Broken ones are made from it, each by one change.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import torch

from hotswap.seams import Stage
from hotswap.testing import Publish
from hotswap.types import Bucket, Manifest, Payload, Placement, TensorSpec, Update
from hotswap.uninterrupted import on_worker_thread

__all__ = ["FilePayload", "FileStage", "FileStrategy", "publisher"]


def publisher(folder: Path) -> Publish:
    """Writes sources into ``folder``."""
    numbers = itertools.count()

    def publish(tensors: Mapping[str, torch.Tensor]) -> str:
        source = folder / f"source-{next(numbers)}"
        source.mkdir(parents=True)
        index = {}
        for number, (name, tensor) in enumerate(tensors.items()):
            raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
            (source / f"{number}.bin").write_bytes(raw.tobytes())
            dtype = str(tensor.dtype).removeprefix("torch.")
            index[name] = {"file": f"{number}.bin", "dtype": dtype, "shape": list(tensor.shape)}
        (source / "index.json").write_text(json.dumps(index))
        return str(source)

    return publish


class FilePayload:
    """One tensor in an open file; a ``Readable``."""

    def __init__(self, spec: TensorSpec, fd: int) -> None:
        self.spec = spec
        self.fd = fd

    def read_into(self, out: torch.Tensor) -> None:
        """Fill ``out``, from any thread. Raises: OSError for a file that is too short."""
        if not out.numel():
            return
        view: memoryview = out.view(-1).view(torch.uint8).numpy().data
        at = 0
        while at < len(view):
            got = self.read(view[at:], at)
            if not got:
                raise OSError(f"{self.spec} ends at byte {at}")
            at += got

    def read(self, view: memoryview, at: int) -> int:
        """One read."""
        return os.preadv(self.fd, [view], at)


class FileStage:
    """Everything of one directory, open."""

    def __init__(self, update: Update, placement: Placement) -> None:
        self.source = Path(update.source)
        self.placement = placement
        self.fds: dict[str, int] = {}
        self.manifest = Manifest.of([])

    def load(self) -> None:
        """Open everything; on a worker thread."""
        with (self.source / "index.json").open() as file:
            index = json.load(file)
        for name, entry in index.items():
            self.open_file(name, self.source / entry["file"])
        self.manifest = Manifest.of(
            TensorSpec(name=name, dtype=getattr(torch, entry["dtype"]), shape=tuple(entry["shape"]))
            for name, entry in index.items()
        )

    def open_file(self, name: str, path: Path) -> None:
        """Open one."""
        self.fds[name] = os.open(path, os.O_RDONLY)

    def payload(self, spec: TensorSpec) -> Payload:
        """One tensor."""
        return FilePayload(spec, self.fds[spec.name])

    def buckets(self) -> Iterator[Bucket]:
        """One tensor a bucket."""
        for spec in self.manifest.tensors:
            yield [(spec.name, self.payload(spec))]

    def close(self) -> None:
        """Close everything. Idempotent."""
        while self.fds:
            os.close(self.fds.popitem()[1])


class FileStrategy:
    """Correct."""

    stage: Callable[[Update, Placement], FileStage] = FileStage

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        """Open on a thread, close whatever happens."""
        stage = self.stage(update, placement)
        try:
            await on_worker_thread(stage.load)
            yield stage
        finally:
            stage.close()
