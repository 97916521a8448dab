"""The two things that an update is measured against, in a process of their own.

``copy``: ``Tensor.copy_`` of every tensor of the checkpoint from touched anonymous
memory into touched anonymous memory: the least that replacing weights in host
memory can cost. ``load``: ``safetensors.torch.load_file`` and ``copy_`` into the
same destination: what a script would do.

The process answers commands on its pipes, one at a time, so that its runs can
alternate with the server's; between commands it sleeps and takes no CPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from safetensors.torch import load_file

from contrib.bench.paths import REPOSITORY

__all__ = ["Baseline", "BaselineProcess"]

_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}


@dataclass(frozen=True, slots=True)
class Baseline:
    """Seconds of one run: ``load_s`` is the call of ``load_file`` alone."""

    copy_s: float
    load_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Both together."""
        return self.copy_s + self.load_s


class BaselineProcess:
    """The parent's end. ``threads`` is given to OpenMP and to torch alike."""

    def __init__(self, directories: tuple[Path, Path], *, threads: int) -> None:
        environment = {**os.environ, **_ENVIRONMENT, "OMP_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "contrib.bench.baseline", *map(str, directories)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
            env=environment,
            text=True,
        )
        self.configuration: Mapping[str, object] = self._reply()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()  # closes its stdin, which ends it

    def copy(self) -> Baseline:
        """One run of ``copy_`` alone."""
        return Baseline(self._ask("copy")["copy_s"])

    def load(self) -> Baseline:
        """One run of ``load_file`` and ``copy_``; the two checkpoints take turns."""
        reply = self._ask("load")
        return Baseline(reply["copy_s"], reply["load_s"])

    def _ask(self, command: str) -> dict[str, float]:
        if self._process.stdin is None:
            raise RuntimeError("the baseline process has no stdin")
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return {name: float(str(value)) for name, value in self._reply().items()}

    def _reply(self) -> dict[str, object]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise RuntimeError(f"the baseline process ended with {self._process.wait()}")
        reply: dict[str, object] = json.loads(line)
        return reply


def _copy(source: Mapping[str, torch.Tensor], target: Mapping[str, torch.Tensor]) -> float:
    start = time.perf_counter()
    for name, tensor in target.items():
        tensor.copy_(source[name])
    return time.perf_counter() - start


def _load(file: Path, target: Mapping[str, torch.Tensor]) -> Baseline:
    start = time.perf_counter()
    loaded = load_file(file)
    load_s = time.perf_counter() - start
    return Baseline(_copy(loaded, target), load_s)


def _configuration(target: Mapping[str, torch.Tensor]) -> dict[str, object]:
    size_bytes = sum(tensor.nbytes for tensor in target.values())
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "dtype": "/".join(sorted({str(tensor.dtype) for tensor in target.values()})),
        "tensors": len(target),
        "bytes": size_bytes,
        "env": {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")},
    }


def _serve(directories: list[Path]) -> None:
    files = [directory / "model.safetensors" for directory in directories]
    source = {name: tensor.clone() for name, tensor in load_file(files[0]).items()}
    target = {name: tensor.clone() for name, tensor in source.items()}
    load_file(files[1])
    print(json.dumps(_configuration(target)), flush=True)
    turn = 0
    for line in sys.stdin:
        if line.strip() == "copy":
            run = Baseline(_copy(source, target))
        else:
            turn += 1
            run = _load(files[turn % 2], target)
        print(json.dumps({"copy_s": run.copy_s, "load_s": run.load_s}), flush=True)


if __name__ == "__main__":
    _serve([Path(argument) for argument in sys.argv[1:]])
