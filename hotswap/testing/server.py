"""A real server in a process of its own, for tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Protocol

import httpx

__all__ = ["ServerProcess", "Started"]

_URL = re.compile(r"serving .* on (http://\S+), state")


class Started(Protocol):
    """What is used here of the ``subprocess.Popen`` of a server."""

    pid: int

    def poll(self) -> int | None:
        """The exit code, None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended. Raises: subprocess.TimeoutExpired."""

    def terminate(self) -> None:
        """Send SIGTERM."""

    def kill(self) -> None:
        """Send SIGKILL."""


class ServerProcess:
    """``hotswap serve`` of this interpreter on a free loopback port.

    Use it as a context manager: it is entered once ``/health`` answers, and left
    with the process ended (SIGTERM, then SIGKILL). ``arguments`` follow
    ``hotswap serve``; ``environ`` is added to the environment, from which every
    ``HOTSWAP_*`` and ``GR_*`` variable has been taken. ``program`` is the module to run.

    Raises: AssertionError with the log when the server does not come up.
    """

    def __init__(
        self,
        model: str | Path,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        allow_weight_update: bool = True,
        program: str = "hotswap",
        start_s: float = 120.0,
        stop_s: float = 15.0,
    ) -> None:
        self._command = [sys.executable, "-m", program, "serve", "--model", str(model)]
        self._command += ["--port", "0"]
        if allow_weight_update:
            self._command.append("--allow-weight-update")
        self._command += arguments
        self._environ = _clean_environ() | dict(environ or {})
        self._start_s = start_s
        self._stop_s = stop_s
        self._stack = ExitStack()
        self._log_fd: int | None = None
        self._last_log = ""
        self._process: Started | None = None
        self._url = ""

    def __repr__(self) -> str:
        pid = self._process.pid if self._process is not None else None
        return f"<ServerProcess pid={pid} {self._url or 'not up'}>"

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:PORT``."""
        assert self._url, f"the server is not up:\n{self.log}"
        return self._url

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    @property
    def log(self) -> str:
        """What the server has written, both streams; also after it has ended."""
        if self._log_fd is not None:
            size = os.fstat(self._log_fd).st_size
            self._last_log = os.pread(self._log_fd, size, 0).decode(errors="replace")
        return self._last_log

    @property
    def exit_code(self) -> int | None:
        """None while the process runs; negative for a signal."""
        return None if self._process is None else self._process.poll()

    def client(self, *, timeout_s: float = 30.0) -> httpx.Client:
        """A client of this server; the caller closes it."""
        return httpx.Client(base_url=self.base_url, timeout=timeout_s, trust_env=False)

    def async_client(self, *, timeout_s: float = 30.0) -> httpx.AsyncClient:
        """An asynchronous client of this server; the caller closes it."""
        return httpx.AsyncClient(base_url=self.base_url, timeout=timeout_s, trust_env=False)

    def wait(self) -> int:
        """Wait for a process that is ending by itself; its exit code.

        Raises: subprocess.TimeoutExpired after ``stop_s``.
        """
        assert self._process is not None, "the server was not started"
        return self._process.wait(self._stop_s)

    def stop(self) -> int:
        """End the process and return its exit code. Ending it again does nothing."""
        process = self._process
        assert process is not None, "the server was not started"
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(self._stop_s)
            except subprocess.TimeoutExpired:
                process.kill()
        return process.wait()

    def __enter__(self) -> ServerProcess:
        self._log_fd = self._stack.enter_context(tempfile.TemporaryFile()).fileno()
        self._process = self._start(self._command, self._environ, self._log_fd)
        try:
            self._wait_until_up()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _start(self, command: Sequence[str], environ: Mapping[str, str], log: int) -> Started:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environ
        )

    def _end(self) -> None:
        self.stop()
        self._last_log = self.log
        self._log_fd = None
        self._stack.close()

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + self._start_s
        while time.monotonic() < deadline:
            assert self.exit_code is None, f"the server ended with {self.exit_code}:\n{self.log}"
            found = _URL.search(self.log)
            if found is not None and _answers(found[1]):
                self._url = found[1]
                return
            # Polling another process: there is no event of ours to wait for.
            time.sleep(0.05)
        raise AssertionError(f"no /health within {self._start_s:g} s:\n{self.log}")


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5.0, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _clean_environ() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOTSWAP_", "GR_")) and name != "WEB_CONCURRENCY"
    }
    return kept | {"PYTHONUNBUFFERED": "1"}
