"""A trainer's publisher in a process of its own: ``python -m`` BASE SOURCE EXPECTED.

Each line of its input is a version and an encoding: ``7 xor``. It changes one element in a
hundred, publishes the delta, writes the whole checkpoint of the version below EXPECTED for
the test to compare with, and answers with the version. Without torch: a trainer's machine
may have none that this server's checkpoints need.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from hotswap.stream import publish_delta
from tests.untraced import UNTRACED

__all__ = ["Publisher", "publisher"]

_FILE = "model.safetensors"
Tensors = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Publisher:
    """The process, as the test sees it."""

    process: asyncio.subprocess.Process
    expected: Path

    async def publish(self, version: int, encoding: str) -> Path:
        """Have ``version`` published; the directory of its whole checkpoint."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{version} {encoding}\n".encode())
        await stdin.drain()
        assert await stdout.readline() == f"{version}\n".encode()
        return self.expected / str(version)


@asynccontextmanager
async def publisher(base: Path, source: Path, expected: Path) -> AsyncIterator[Publisher]:
    """Run it; it ends with the block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, str(base), str(source), str(expected)),
        env={**os.environ, **UNTRACED},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Publisher(process=process, expected=expected)
    finally:
        # It reads to the end of its input.
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
    assert process.returncode == 0


def _changed(tensors: Tensors, version: int) -> Tensors:
    source, after = np.random.default_rng(version), Tensors()
    for name, tensor in tensors.items():
        new = tensor.copy()
        flat = new.reshape(-1)
        count = max(1, flat.size // 100)
        flat[source.choice(flat.size, count, replace=False)] *= -1.5
        after[name] = new
    return after


def _bytes_of(tensor: NDArray[np.float32]) -> NDArray[np.uint8]:
    return tensor.reshape(-1).view(np.uint8)


def main(base: Path, source: Path, expected: Path) -> None:
    """Serve the lines of the standard input."""
    tensors: Tensors = safetensors.numpy.load_file(base / _FILE)
    for line in sys.stdin:
        version, encoding = line.split()
        new = _changed(tensors, int(version))
        whole = expected / version
        shutil.copytree(base, whole, ignore=shutil.ignore_patterns(_FILE))
        safetensors.numpy.save_file(new, whole / _FILE)
        changes = [(name, _bytes_of(tensors[name]), _bytes_of(new[name])) for name in sorted(new)]
        publish_delta(source, int(version), [changes[::2], changes[1::2]], encoding=encoding)
        tensors = new
        sys.stdout.write(f"{version}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
