"""Pushes on hotswap's own wire, against what the same bytes cost without hotswap.

The body: against an upload of the same bytes, from the same httpx, to a Starlette app that
counts them. Shared memory, in which the tensors lie ready: against ``copy_`` of as many bytes.
Rounds follow each other, so that whatever else the machine does hits both sides alike. After
them bodies are pushed with probes of ``/health`` beside them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import httpx
from safetensors.torch import load_file

from contrib.bench.baseline import BaselineProcess
from contrib.bench.health import Prober, health_measures
from contrib.bench.machine import THREADS, describe_machine
from contrib.bench.model import LARGE, checkpoint
from contrib.bench.paths import REPOSITORY
from contrib.bench.results import Report, best, ratio_of_bests
from contrib.bench.server import Server, free_port
from hotswap.client import Client, Transport
from hotswap.push import SafetensorsBody, SharedTensors

__all__ = ["run"]

BODY_LIMIT = 1 / 0.5
SHARED_LIMIT = 1 / 0.4
_START_S = 60.0
_PROBED_PUSHES = 5


def run(*, rounds: int) -> Report:
    """Upload, body, copy, shared memory: ``rounds`` times each."""
    directories = checkpoint(LARGE, "a"), checkpoint(LARGE, "b")
    tensors = load_file(directories[1] / "model.safetensors")
    body = SafetensorsBody(tensors.items())
    samples: dict[str, list[float]] = {
        name: [] for name in ("upload_ms", "body_ms", "copy_ms", "shared_ms", "shared_paused_ms")
    }
    with (
        BaselineProcess(directories, threads=THREADS) as baseline,
        Server(directories[0], threads=THREADS) as server,
        _uploads() as upload,
        SharedTensors.of(tensors.items()) as shared,
        Client(f"http://127.0.0.1:{server.port}") as client,
    ):
        configuration = server.configuration()
        for turn in range(rounds + 1):
            started = time.perf_counter()
            upload(body)
            uploaded = time.perf_counter()
            client.push(tensors, transport=Transport.BODY)
            pushed = time.perf_counter()
            copied_s = baseline.copy().total_s
            begun = time.perf_counter()
            result = client.push(shared)
            ended = time.perf_counter()
            if not turn:
                continue  # the first one of each process pays for its memory
            samples["upload_ms"].append(1000 * (uploaded - started))
            samples["body_ms"].append(1000 * (pushed - uploaded))
            samples["copy_ms"].append(1000 * copied_s)
            samples["shared_ms"].append(1000 * (ended - begun))
            samples["shared_paused_ms"].append(result.paused_ms or 0.0)
        with Prober(server) as prober:
            for _ in range(_PROBED_PUSHES):
                client.push(tensors, transport=Transport.BODY)
    return Report(
        name="push_native",
        configuration={
            "machine": describe_machine(),
            "server": configuration,
            "bytes": len(body),
            "tensors": len(tensors),
            "rounds": rounds,
        },
        measures=[
            *(best(name.removesuffix("_ms"), values) for name, values in samples.items()),
            ratio_of_bests(
                "body / bare upload", samples["body_ms"], samples["upload_ms"], limit=BODY_LIMIT
            ),
            ratio_of_bests(
                "shared / copy_", samples["shared_ms"], samples["copy_ms"], limit=SHARED_LIMIT
            ),
            *health_measures("body", prober.latencies_ms),
        ],
        samples={**samples, "health_ms": prober.latencies_ms},
    )


class _Upload:
    def __init__(self, http: httpx.Client, url: str) -> None:
        self._http = http
        self._url = url

    def __call__(self, body: SafetensorsBody) -> None:
        """One upload. Raises: RuntimeError when not every byte came."""
        headers = {"content-length": str(len(body)), "content-type": "application/octet-stream"}
        # httpx takes whatever sockets take, and says so of bytes alone.
        pieces = cast(Iterator[bytes], iter(body))
        reply = self._http.post(f"{self._url}/upload", content=pieces, headers=headers)
        if reply.json() != {"bytes": len(body)}:
            raise RuntimeError(f"the upload was answered with {reply.text!r:.200}")


@contextmanager
def _uploads() -> Iterator[_Upload]:
    port = free_port()
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS)}
    command = [sys.executable, "-m", "contrib.bench.push_upload_side", str(port)]
    process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(trust_env=False, timeout=120.0) as http:
            _await(http, url)
            yield _Upload(http, url)
    finally:
        process.terminate()
        process.wait()


def _await(http: httpx.Client, url: str) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            http.get(url)
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise
            # Polling another process: a port that listens is no event of ours.
            time.sleep(0.05)
        else:
            return
