"""Real servers that start in a quarter of the time: forked from a process that has torch.

For tests of what a server does once it is up. How one comes up from a command line is for
``test_cli.py``, ``test_serve_smoke.py`` and ``test_shutdown.py``. Coverage traces none of them.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hotswap.testing.server import ServerProcess, Started
from tests.untraced import UNTRACED

__all__ = ["FORKER", "ForkedServer", "Forker"]

ROOT = Path(__file__).parents[2]

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""What torch reads as it is imported."""


class Forker:
    """Talks to ``tests.process.forker``, which is started when it is first needed. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def __repr__(self) -> str:
        pid = self._process.pid if self._process is not None else None
        return f"<Forker pid={pid}>"

    def start(self, command: Sequence[str], *, environ: Mapping[str, str], log: str) -> Forked:
        """``python -m`` the command, in the current directory; ``log`` takes its output."""
        asked = {"command": command, "environ": environ, "cwd": os.getcwd(), "log": log}
        return Forked(self, pid=self.ask(asked)["pid"])

    def close(self) -> None:
        """End the process. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.communicate(timeout=60)

    def ask(self, question: object) -> Any:
        """What it answers. Raises: AssertionError when it has ended."""
        with self._lock:
            if self._process is None:
                self._process = self._started()
                atexit.register(self.close)
            process = self._process
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        assert line, f"the process that forks servers has ended with {process.poll()}"
        return json.loads(line)

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "tests.process.forker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **_ONE_THREAD, **UNTRACED},
            cwd=ROOT,
        )


class Forked:
    """A process that ``forker`` has forked, as ``subprocess.Popen`` shows one."""

    def __init__(self, forker: Forker, *, pid: int) -> None:
        self._forker = forker
        self.pid = pid
        self._code: int | None = None

    def __repr__(self) -> str:
        return f"<Forked pid={self.pid} {self._code}>"

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        if self._code is None:
            self._code = self._forker.ask({"ended": self.pid})["code"]
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises: subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and timeout is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"the process {self.pid}", timeout)
            # Polling another process: there is no event of ours to wait for.
            time.sleep(0.01)
        return code

    def terminate(self) -> None:
        """SIGTERM, unless it has ended."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


FORKER = Forker()
"""The one of this test run, at whose end it ends."""


class ForkedServer(ServerProcess):
    """A ``ServerProcess`` that is forked, untraced, with one thread of arithmetic."""

    def _start(self, command: Sequence[str], environ: Mapping[str, str], log: int) -> Started:
        # The log has no name of its own.
        path = f"/proc/{os.getpid()}/fd/{log}"
        environ = {**environ, "OMP_NUM_THREADS": "1", **UNTRACED}
        return FORKER.start(command[2:], environ=environ, log=path)
