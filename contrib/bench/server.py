"""A real ``hotswap serve`` on loopback, and the few requests that the benchmarks send."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from contrib.bench import process
from contrib.bench.paths import BENCH_DIR, REPOSITORY

__all__ = ["Arrival", "RequestFailed", "Server", "free_port"]

_START_TIMEOUT_S = 120.0
_REQUEST_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 15.0
_SHOWN_VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MALLOC_ARENA_MAX")


class RequestFailed(RuntimeError):
    """The server answered a request with something else than 200."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One streamed chunk: ``perf_counter`` at its arrival, output tokens so far."""

    at: float
    tokens: int


class Server:
    """Starts on entry and is stopped on exit; its log lies in ``.bench/``."""

    def __init__(self, model: Path, *, threads: int, options: Sequence[str] = ()) -> None:
        self.port = free_port()
        self.log = BENCH_DIR / f"server-{self.port}.log"
        self.command = [
            *(str(Path(sys.executable).with_name("hotswap")), "serve"),
            *("--model", str(model), "--host", "127.0.0.1", "--port", str(self.port)),
            *("--allow-weight-update", "--weights-root", str(BENCH_DIR), *options),
        ]
        self._environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        BENCH_DIR.mkdir(exist_ok=True)  # nobody may have made a checkpoint there yet
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=REPOSITORY,
                env=self._environment,
            )
        try:
            self._await_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()
        if error is None:
            self.log.unlink(missing_ok=True)

    @property
    def pid(self) -> int:
        """Process id of the server."""
        if self._process is None:
            raise RuntimeError("the server was not started; enter it first")
        return self._process.pid

    def configuration(self) -> dict[str, object]:
        """Command line and the environment variables that matter for speed."""
        shown = [Path(self.command[0]).name, *self.command[1:]]
        return {
            "command": " ".join(part.replace(f"{REPOSITORY}/", "") for part in shown),
            "env": process.environment(self.pid, *_SHOWN_VARIABLES),
        }

    def get(self, path: str) -> dict[str, object]:
        """JSON body of a GET. Raises: RequestFailed."""
        return self._request("GET", path, None)

    def post(self, path: str, body: Mapping[str, object]) -> dict[str, object]:
        """JSON body of a POST. Raises: RequestFailed."""
        return self._request("POST", path, body)

    def update(self, directory: Path, **fields: object) -> dict[str, float]:
        """Swap to ``directory``; the reply's figures, and ``round_trip_ms`` as seen here."""
        start = time.perf_counter()
        reply = self.post("/update_weights_from_disk", {"model_path": str(directory), **fields})
        elapsed_s = time.perf_counter() - start
        figures = {
            name: float(value)
            for name, value in reply.items()
            if isinstance(value, int | float) and name.endswith("_ms")
        }
        return {**figures, "round_trip_ms": 1000 * elapsed_s}

    @contextmanager
    def connection(self) -> Iterator[http.client.HTTPConnection]:
        """A fresh connection, closed at the end."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_REQUEST_TIMEOUT_S)
        try:
            yield connection
        finally:
            connection.close()

    def stream(self, prompt: Sequence[int], tokens: int) -> Iterator[Arrival]:
        """Generate greedily, and say when each chunk came. Raises: RequestFailed."""
        sampling = {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
        body = {"input_ids": list(prompt), "sampling_params": sampling, "stream": True}
        with self.connection() as connection:
            connection.request("POST", "/generate", json.dumps(body), _HEADERS)
            answer = connection.getresponse()
            if answer.status != 200:
                raise RequestFailed(f"/generate answered {answer.status}: {answer.read()!r}")
            for line in answer:
                if line.startswith(b"data: {"):
                    at = time.perf_counter()
                    yield Arrival(at, _completion_tokens(json.loads(line[6:])))

    def _request(
        self, method: str, path: str, body: Mapping[str, object] | None
    ) -> dict[str, object]:
        with self.connection() as connection:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, _HEADERS)
            answer = connection.getresponse()
            text = answer.read()
        if answer.status != 200:
            raise RequestFailed(f"{path} answered {answer.status}: {text.decode()}")
        reply: dict[str, object] = json.loads(text or b"{}")
        return reply

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self._process is not None and self._process.poll() is None:
            try:
                self.get("/ready")
            except (OSError, RequestFailed) as error:
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"not ready after {_START_TIMEOUT_S:.0f} s ({error}); see {self.log}"
                    ) from error
                time.sleep(0.1)
            else:
                return
        raise RuntimeError(f"the server ended while starting:\n{self.log.read_text()[-2000:]}")

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_HEADERS = {"Content-Type": "application/json"}


def _completion_tokens(chunk: Mapping[str, object]) -> int:
    meta = chunk.get("meta_info")
    count = meta.get("completion_tokens") if isinstance(meta, dict) else None
    if not isinstance(count, int):
        raise RequestFailed(f"a chunk has no meta_info.completion_tokens: {chunk!r}")
    return count


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
