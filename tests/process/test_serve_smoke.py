"""One server from its first line to its last, over loopback."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from hotswap.testing.checkpoints import make_checkpoint
from hotswap.testing.server import ServerProcess
from tests.process.forked_server import ForkedServer
from tests.untraced import UNTRACED

pytestmark = pytest.mark.process

LONG = {
    "text": "hello",
    "stream": True,
    "sampling_params": {"max_new_tokens": 30_000, "ignore_eos": True},
}
HALVES = (
    b"POST /gener",
    b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Le",
    b'POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"text": ',
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model") / "a", max_position_embeddings=32_768)


@pytest.fixture
def server(model: Path) -> Iterator[ServerProcess]:
    environ = {"OMP_NUM_THREADS": "1", "HOTSWAP_LOG_LEVEL": "error", **UNTRACED}
    with ServerProcess(model, environ=environ) as running:
        yield running


def events(reply: httpx.Response) -> Iterator[Any]:
    for line in reply.iter_lines():
        if line:
            payload = line.removeprefix("data: ")
            yield payload if payload == "[DONE]" else json.loads(payload)


def test_health_generate_pause_and_an_orderly_end(server: ServerProcess) -> None:
    with server.client() as client:
        assert client.get("/health").json()["state"] == "serving"
        whole = client.post("/generate", json={"text": "hello", "rid": "r"}).json()
        assert whole["meta_info"]["id"] == "r"
        assert whole["meta_info"]["weight_version"] is None
        assert client.post("/pause_generation").json()["paused"] is True
        assert client.get("/ready").json()["reasons"] == ["paused"]
        assert client.post("/generate", json={"text": "a"}).status_code == 503
        assert client.post("/continue_generation").json()["paused"] is False
        assert client.get("/ready").status_code == 200

    assert server.stop() == 0
    assert f"on {server.base_url}, state serving" in server.log
    assert "Traceback" not in server.log


def test_a_client_that_leaves_a_stream_frees_the_engine(server: ServerProcess) -> None:
    with server.client() as watcher:
        with server.client() as client, client.stream("POST", "/generate", json=LONG) as reply:
            # Kept: httpx closes the connection when the iteration is dropped.
            stream = events(reply)
            assert next(stream)["output_ids"]
            assert watcher.get("/status").json()["in_flight"]["running"] == 1

        for _ in range(1000):
            state = watcher.get("/status").json()
            if state["in_flight"]["running"] == 0:
                break
        assert (state["in_flight"]["running"], state["http_requests"]) == (0, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_stream_with_abort(server: ServerProcess, number: signal.Signals) -> None:
    with server.client() as client, client.stream("POST", "/generate", json=LONG) as reply:
        stream = events(reply)
        next(stream)
        os.kill(server.pid, number)
        *_, last, done = stream

    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert last["meta_info"]["completion_tokens"] == len(last["output_ids"]) > 0
    assert done == "[DONE]"
    assert server.wait() == 0
    assert "Traceback" not in server.log


def test_half_a_request_does_not_hold_up_the_end(model: Path) -> None:
    with ForkedServer(model, "--graceful-s", "10") as server:
        port = int(server.base_url.rpartition(":")[2])
        with ExitStack() as halves, server.client() as client:
            for sent in HALVES:
                half = halves.enter_context(socket.create_connection(("127.0.0.1", port)))
                half.sendall(sent)
            assert client.get("/health").status_code == 200
            begun = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - begun < 8
    assert "Traceback" not in server.log


@pytest.mark.long  # it waits for what a client may take
def test_a_client_that_reads_nothing_is_cut_off(model: Path) -> None:
    with ForkedServer(model, "--graceful-s", "0.5") as server:
        port = int(server.base_url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as deaf, server.client() as client:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            # Some 20 MB of events: more than the buffers between the two take.
            sampling = {"max_new_tokens": 2000, "ignore_eos": True}
            body = json.dumps({**LONG, "sampling_params": sampling}).encode()
            head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            deaf.sendall(head.encode() + body)
            # Polling another process, which has much to do: there is no event of ours to wait for.
            # That the request is there says nothing: it may not have begun to run.
            while not client.get("/status").json()["in_flight"]["running"]:
                time.sleep(0.02)
            while (status := client.get("/status").json())["in_flight"]["running"]:
                time.sleep(0.05)
            assert status["http_requests"] == 1
            assert server.stop() == 0
    assert "Traceback" not in server.log
    assert "were cut" in server.log


def test_a_second_server_on_the_port_says_so_in_one_line(
    server: ServerProcess, model: Path
) -> None:
    port = server.base_url.rpartition(":")[2]
    second = subprocess.run(
        [sys.executable, "-m", "hotswap", "serve", "--model", str(model), "--port", port],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **UNTRACED},
    )

    assert second.returncode == 1
    assert second.stderr.splitlines()[-1].startswith(
        f"hotswap serve: cannot listen on 127.0.0.1:{port}: "
    )
    assert "Traceback" not in second.stderr


def test_a_server_that_does_not_come_up_shows_its_log() -> None:
    with pytest.raises(AssertionError, match="/nonexistent is not there"):
        ServerProcess("/nonexistent", environ=UNTRACED).__enter__()
