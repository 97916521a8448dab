"""A process that serves one model without HTTP, pulls versions and commits them, by command.

``python -m contrib.bench.sparse_side (native | plain) BASE THREADS``: says its configuration. A
command is ``{"source": DIR, "local": DIR, "version": N, "full": bool}``: the version is pulled and
loaded, and ``full`` gives the live weights another label before, after which all of it is loaded.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import torch
from hotswap_disk import DiskStrategy

from contrib.bench.generation_side import environment
from hotswap.controller import Controller
from hotswap.engine import EmbeddedEngine
from hotswap.native import has_native
from hotswap.pulls import Puller
from hotswap.stream.recorded import RecordedBase
from hotswap.types import Update

__all__ = ["MODULE"]

MODULE = "contrib.bench.sparse_side"


class _WithoutNumba(MetaPathFinder):
    """As where it is not installed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "numba":
            raise ModuleNotFoundError(name)
        return None


@asynccontextmanager
async def _serving(base: Path, threads: int) -> AsyncIterator[tuple[Controller, Puller]]:
    puller = Puller(RecordedBase.of(base), threads=threads)
    async with (
        EmbeddedEngine.from_directory(base, device="cpu", max_total_tokens=1024) as engine,
        Controller(engine, strategies={"disk": DiskStrategy()}, stamp=engine.stamp) as controller,
    ):
        yield controller, puller


async def _step(controller: Controller, puller: Puller, command: Mapping[str, Any]) -> object:
    begin = time.perf_counter()
    await puller.pull(command["local"], command["source"], command["version"])
    pulled_ms = 1000 * (time.perf_counter() - begin)
    if command["full"]:
        await controller.relabel("another")
    report = await controller.update(Update(source=command["local"]))
    return {
        "mode": report.commit_mode,
        "elements": report.elements_moved,
        "pulled_ms": pulled_ms,
        "staged_ms": report.staged_ms,
        "paused_ms": report.paused_ms,
    }


async def _main(base: Path, threads: int) -> None:
    torch.set_num_threads(threads)
    async with _serving(base, threads) as (controller, puller):
        shown = {"native": has_native(), "torch_threads": threads, "env": environment()}
        print(json.dumps(shown), flush=True)
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            print(json.dumps(await _step(controller, puller, json.loads(line))), flush=True)


if __name__ == "__main__":
    kind, base, threads = sys.argv[1:]
    if kind == "plain":
        sys.meta_path.insert(0, _WithoutNumba())
    anyio.run(_main, Path(base), int(threads))
