"""The trainer's process that pushes of these tests come from, started once and when needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread

from tests.untraced import UNTRACED

__all__ = ["TRAINER", "Trainer", "environ"]

ROOT = Path(__file__).parents[2]


def environ() -> dict[str, str]:
    """Of a program of these tests that works beside servers."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **UNTRACED}


class Trainer:
    """Talks to ``tests.process.push_producer``. Any thread. ``pids`` are of all it has started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self.pids: set[int] = set()

    def __repr__(self) -> str:
        pid = self._process.pid if self._process is not None else None
        return f"<Trainer pid={pid}>"

    @asynccontextmanager
    async def payloads(
        self, directory: Path, *, chunks: int = 1, form: str = "flattened_bucket"
    ) -> AsyncIterator[list[str]]:
        """Payloads of a checkpoint, which can be read within the block.

        Raises: AssertionError when shared memory is left after it.
        """
        shared = await self.share(directory, chunks=chunks, form=form)
        try:
            yield shared["payloads"]
        finally:
            with anyio.CancelScope(shield=True):
                left = await self.release(shared["number"])
        assert left == 0, f"{left} segments have a reference that nobody gave back"

    async def share(
        self, directory: Path, *, chunks: int = 1, form: str = "flattened_bucket"
    ) -> Any:
        """``number`` and ``payloads`` of a checkpoint, until they are released."""
        asked = {"directory": str(directory), "chunks": chunks, "form": form}
        return await self._ask(asked)

    async def release(self, number: int) -> int:
        """Let the tensors go; how many segments are left that nobody holds."""
        return int((await self._ask({"release": number}))["left"])

    def close(self) -> None:
        """End the process. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.communicate(timeout=60)

    def kill(self) -> None:
        """End it as a machine that runs out of memory does."""
        process, self._process = self._process, None
        assert process is not None
        process.kill()
        process.communicate(timeout=60)

    async def _ask(self, question: object) -> Any:
        return await anyio.to_thread.run_sync(self._asked, question)

    def _asked(self, question: object) -> Any:
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.process.push_producer"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environ(),
                )
            process = self._process
            self.pids.add(process.pid)
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        assert line, f"the producer has ended with {process.poll()}"
        return json.loads(line)


TRAINER = Trainer()
"""The one of this test run; ``tests/process/conftest.py`` ends it."""
