"""Keys and body limits of a real server, over raw sockets where a client library is too polite."""

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from hotswap.testing.server import ServerProcess
from tests.untraced import UNTRACED

pytestmark = pytest.mark.process

API, ADMIN = "api-1s3cret", "admin-2s3cret"
LIMIT = 4000


@pytest.fixture(scope="module")
def keyed(a: Path) -> Iterator[ServerProcess]:
    flags = ["--api-key", API, f"--admin-api-key={ADMIN}", "--log-level", "debug"]
    flags += ["--max-http-request-bytes", str(LIMIT)]
    with ServerProcess(a, *flags, environ={"OMP_NUM_THREADS": "1", **UNTRACED}) as server:
        yield server
        assert "Traceback" not in server.log
        assert API not in server.log
        assert ADMIN not in server.log


def exchange(server: ServerProcess, sent: bytes, *, end: bool = False) -> bytes:
    """Everything that the server says to ``sent``, until it closes or says no more."""
    port = int(server.base_url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as raw:
        raw.sendall(sent)
        if end:
            raw.shutdown(socket.SHUT_WR)
        received = b""
        while b"\r\n\r\n" not in final(received):
            piece = raw.recv(65536)
            if not piece:
                break
            received += piece
        return received


def final(received: bytes) -> bytes:
    """The reply without the word to go on that may come before it."""
    head, _, rest = received.partition(b"\r\n\r\n")
    return rest if head.startswith(b"HTTP/1.1 100 ") else received


def status_line(server: ServerProcess, method: str, target: str, *, key: str = "") -> bytes:
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n"
    if key:
        head += f"X-GR-API-Key: {key}\r\n"
    return exchange(server, f"{head}\r\n".encode()).partition(b"\r\n")[0]


@pytest.mark.parametrize("path", ["/generate", "/pause_generation", "/unknown"])
def test_a_refusal_before_the_body_ends_the_connection_in_so_many_words(
    keyed: ServerProcess, path: str
) -> None:
    """Else the client's next request would run into a connection that is closed."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
    reply = exchange(keyed, head.encode()).lower()
    assert reply.startswith(b"http/1.1 401")
    assert b"\r\nconnection: close\r\n" in reply


def test_no_key_on_the_command_line(keyed: ServerProcess) -> None:
    shown = (Path("/proc") / str(keyed.pid) / "cmdline").read_bytes()

    assert API.encode() not in shown
    assert ADMIN.encode() not in shown
    words = shown.split(b"\0")
    assert words[words.index(b"--api-key") + 1] == b"*" * len(API)
    assert b"--admin-api-key=" + b"*" * len(ADMIN) in words
    assert b"--max-http-request-bytes" in words


def test_the_keys_work(keyed: ServerProcess) -> None:
    with keyed.client() as client:
        assert client.get("/health").status_code == 200
        assert client.get("/status").status_code == 401
        as_user, as_admin = ({"X-GR-API-Key": key} for key in (API, ADMIN))
        body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}
        assert client.post("/generate", json=body, headers=as_user).status_code == 200
        assert client.post("/generate", json=body, headers=as_admin).status_code == 401
        assert client.post("/pause_generation", headers=as_user).status_code == 401
        assert client.post("/pause_generation", headers=as_admin).status_code == 200
        assert client.post("/continue_generation", headers=as_admin).status_code == 200


@pytest.mark.parametrize(
    "target",
    [
        "/pause_generation",
        "/%70ause_generation",
        "/pause_generation%0a",
        "//pause_generation",
        "/health/../pause_generation",
        "/health/%2e%2e/pause_generation",
        "/health?/../pause_generation",
        "http://x/pause_generation",
        "/PAUSE_GENERATION",
        "/pause_generation/",
        "/pause_generation;/health",
        "*",
    ],
)
@pytest.mark.parametrize("method", ["POST", "HEAD", "OPTIONS"])
def test_no_spelling_of_a_path_needs_no_key(keyed: ServerProcess, method: str, target: str) -> None:
    is_probe = target.startswith("/health?")
    statuses = (b" 405 ", b" 200 ") if is_probe else (b" 401 ",)
    line = status_line(keyed, method, target)

    assert any(status in line for status in statuses), line
    with keyed.client() as client:
        assert client.get("/ready").json()["reasons"] == []


def test_a_connection_that_asks_for_a_websocket_needs_a_key(keyed: ServerProcess) -> None:
    upgrade = (
        b"GET /status HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert b" 403 " in exchange(keyed, upgrade).partition(b"\r\n")[0]


def test_a_long_body_without_a_key_is_still_a_401(keyed: ServerProcess) -> None:
    with keyed.client() as client:
        reply = client.post("/generate", content=b" " * 4_000_000)
        assert reply.status_code == 401
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize("key", ["", ADMIN], ids=["no-key", "key"])
def test_what_comes_behind_a_refusal_over_http_2_ends_no_connection(
    keyed: ServerProcess, key: str
) -> None:
    with httpx.Client(
        base_url=keyed.base_url, http1=False, http2=True, timeout=30, trust_env=False
    ) as client:
        port = None
        for _ in range(3):
            reply = client.post(
                "/continue_generation", content=b" " * 1_000_000, headers={"X-GR-API-Key": key}
            )
            assert (reply.http_version, reply.status_code) == ("HTTP/2", 413 if key else 401)
            # Whatever else runs on the connection goes on.
            here = reply.extensions["network_stream"].get_extra_info("client_addr")
            assert port in (None, here)
            port = here
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize("size", [LIMIT, LIMIT + 1, 3_000_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_past_the_limit_is_a_413(keyed: ServerProcess, size: int, chunked: bool) -> None:
    def pieces() -> Iterator[bytes]:
        yield from (b" " * min(1000, size - at) for at in range(0, size, 1000))

    content = pieces() if chunked else b" " * size
    with keyed.client() as client:
        reply: httpx.Response = client.post(
            "/continue_generation", content=content, headers={"X-GR-API-Key": ADMIN}
        )
    assert reply.status_code == (200 if size == LIMIT else 413)
    if size > LIMIT:
        assert reply.json()["error"]["code"] == "payload_too_large"


@pytest.mark.parametrize("expects", [b"", b"Expect: 100-continue\r\n"])
def test_a_body_that_is_promised_too_long_need_not_be_sent(
    keyed: ServerProcess, expects: bytes
) -> None:
    head = b"POST /continue_generation HTTP/1.1\r\nHost: x\r\nX-GR-API-Key: %s\r\n"
    promise = b"%sContent-Length: 100000000\r\n\r\n" % expects
    reply = exchange(keyed, head % ADMIN.encode() + promise)
    # hypercorn tells a client to go on before anything of ours runs.
    assert (final(reply) != reply) == bool(expects)
    assert final(reply).startswith(b"HTTP/1.1 413 ")
    assert b"\r\nconnection: close\r\n" in reply.lower()


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        # Shorter than what follows: the rest is no part of this request.
        (b"Content-Length: 2\r\n\r\n{}{}{}", b" 200 "),
        # Longer: the client goes away in the middle, and there is nobody to answer.
        (b"Content-Length: 200\r\n\r\n{}", b""),
        (b"Content-Length: 2\r\nContent-Length: 4\r\n\r\n{}{}", b" 400 "),
        (b"Content-Length: -1\r\n\r\n{}", b" 400 "),
        (b"Content-Length: 1e3\r\n\r\n{}", b" 400 "),
        (b"Content-Length: 99999999999999999999999\r\n\r\n{}", b" 400 "),
        (b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", b" 400 "),
        (b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", b" 200 "),
    ],
)
def test_lying_lengths(keyed: ServerProcess, claims: bytes, status: bytes) -> None:
    head = f"POST /continue_generation HTTP/1.1\r\nHost: x\r\nX-GR-API-Key: {ADMIN}\r\n".encode()
    line = exchange(keyed, head + claims, end=True).partition(b"\r\n")[0]

    assert status in line, line
    assert b" 5" not in line[8:10]
    with keyed.client() as client:
        assert client.get("/health").status_code == 200
