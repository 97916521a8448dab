"""A gate before a store: it lets requests through, refuses them, holds one back, or is not there.

For readers, whose requests have no body. Each connection is for one request.
"""

from __future__ import annotations

import http
import socket
import socketserver
import threading
from contextlib import suppress
from urllib.parse import urlsplit

from hotswap.closing import Closing

__all__ = ["StoreGate"]

_POLL_S = 0.02


class StoreGate(Closing):
    """Stands before the store at ``endpoint``, open, from its beginning to its end. Any thread."""

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        self._store = str(parts.hostname), int(parts.port or 0)
        # Bound for as long as the gate lives, so that nobody else gets the port while it is shut.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self._address: tuple[str, int] = self._reserved.getsockname()
        self._server: _Server | None = None
        self._refusal: tuple[int, str] | None = None
        self._expired = set[str]()
        self._held: str | None = None
        self._release = threading.Event()
        self.arrived: threading.Event = threading.Event()
        self.requests: list[str] = []
        self.open()

    def __repr__(self) -> str:
        return f"<StoreGate {self.url} {len(self.requests)} requests>"

    def close(self) -> None:
        """Let go of who is held, and of the port. Idempotent."""
        self._release.set()
        self.shut()
        self._reserved.close()

    @property
    def url(self) -> str:
        """The endpoint that readers are told."""
        return f"http://{self._address[0]}:{self._address[1]}"

    def open(self) -> None:
        """Let everything through."""
        self._refusal = None
        if self._server is None:
            self._server = _Server(self._address, self)
            serve = self._server.serve_forever
            threading.Thread(target=serve, args=(_POLL_S,), daemon=True).start()

    def shut(self) -> None:
        """Listen no more: connections are refused."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def refuse(self, status: int, code: str) -> None:
        """Answer every request with this, as S3 spells it."""
        self._refusal = status, code

    def expire(self, key: str) -> None:
        """Refuse requests that are signed with this access key."""
        self._expired.add(key)

    def hold(self, part: str) -> None:
        """Keep the next request with ``part`` in its path waiting; ``arrived`` says when it is."""
        self.arrived.clear()
        self._held = part

    def serve(self, client: socket.socket) -> None:
        """One connection."""
        head, rest = _head(client)
        if not head:
            return
        line = head.partition(b"\r\n")[0].decode("latin-1")
        self.requests.append(line.rpartition(" ")[0])
        if self._held is not None and self._held in line:
            self._held = None
            self.arrived.set()
            self._release.wait()
        refusal = self._refusal
        if any(f"Credential={key}/".encode() in head for key in self._expired):
            refusal = 403, "ExpiredToken"
        if refusal is not None:
            client.sendall(_refused(*refusal, with_body=not line.startswith("HEAD ")))
            return
        with socket.create_connection(self._store) as store:
            store.sendall(head + b"\r\nConnection: close\r\n\r\n" + rest)
            while piece := store.recv(2**16):
                client.sendall(piece)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = allow_reuse_port = daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], gate: StoreGate) -> None:
        self.gate = gate
        super().__init__(address, _Connection)


class _Connection(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        # Who was killed, or has given up, hears no answer.
        with suppress(ConnectionError):
            self.server.gate.serve(self.request)


def _head(client: socket.socket) -> tuple[bytes, bytes]:
    """What comes before the empty line, without what a connection is to do, and the rest."""
    seen = b""
    while b"\r\n\r\n" not in seen:
        piece = client.recv(2**16)
        if not piece:
            return b"", b""
        seen += piece
    head, _, rest = seen.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    return b"\r\n".join(one for one in lines if not one.lower().startswith(b"connection:")), rest


def _refused(status: int, code: str, *, with_body: bool) -> bytes:
    body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
    head = (
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\nContent-Type: application/xml\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode()
    return head + body if with_body else head
