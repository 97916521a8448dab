"""A time within which a request and its whole reply have to be over.

httpx bounds each read and each write by itself: a server that sends one byte now and then would
be waited for as long as it likes. Here every one of them gets what is left of the time.

Rule: the time belongs to the thread, and I/O is done on the thread that asked for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from ssl import SSLContext
from typing import Any

import httpcore
import httpx

__all__ = ["LONGEST_WAIT_S", "BoundedTransport", "pieces_within", "within"]

LONGEST_WAIT_S = 20 * 86_400.0
"""The longest wait that a socket can be told of is a little longer."""

# When it is over, by the monotonic clock.
_end: ContextVar[float | None] = ContextVar("hotswap_client_end", default=None)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Within it, what a ``BoundedTransport`` does on this thread ends after ``seconds``."""
    token = _end.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _end.reset(token)


def pieces_within(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """``pieces`` while there is time. For transports that know nothing of it.

    Raises: httpx.ReadTimeout.
    """
    for piece in pieces:
        if _left(None) == 0:
            raise httpx.ReadTimeout("the reply had begun, and was not whole in time")
        yield piece


def _left(timeout: float | None) -> float | None:
    """``timeout``, or what is left when that is less; 0 when nothing is."""
    end = _end.get()
    if end is None:
        return timeout
    left = max(end - time.monotonic(), 0.0)
    return left if timeout is None else min(timeout, left)


def _left_to_connect(timeout: float | None) -> float | None:
    # A socket would take 0 for "do not wait at all".
    left = _left(timeout)
    if left == 0:
        raise httpcore.ConnectTimeout("no time was left to connect in")
    return left


class BoundedTransport(httpx.HTTPTransport):
    """httpx's own, on connections that look at the time that is left.

    It honours no proxy and no certificates of the environment. Without ``tls`` it reads no
    certificates at all, which takes longer than many a request.
    """

    def __init__(self, *, tls: bool) -> None:
        # Not httpx's: that makes a pool of its own.
        limits = httpx.Limits(max_connections=100, max_keepalive_connections=20)
        self._pool = httpcore.ConnectionPool(
            ssl_context=httpx.create_ssl_context(trust_env=False) if tls else None,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=_Network(),
        )

    def __repr__(self) -> str:
        return f"<BoundedTransport {self._pool!r}>"


class _Network(httpcore.NetworkBackend):
    def __init__(self) -> None:
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        inner = self._inner.connect_tcp(
            host,
            port,
            timeout=_left_to_connect(timeout),
            local_address=local_address,
            socket_options=socket_options,
        )
        return _Connection(inner)

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


class _Connection(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        left = _left(timeout)
        if left == 0:
            raise httpcore.ReadTimeout("the reply was not whole in time")
        return self._inner.read(max_bytes, timeout=left)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # A long buffer goes out in many steps, each of which httpcore would wait for anew.
        socket, rest = self._inner.get_extra_info("socket"), memoryview(buffer)
        while rest:
            left = _left(timeout)
            try:
                if left == 0:
                    raise TimeoutError("the request was not sent in time")
                socket.settimeout(left)
                rest = rest[socket.send(rest) :]
            except TimeoutError as error:
                raise httpcore.WriteTimeout(str(error)) from error
            except OSError as error:
                raise httpcore.WriteError(str(error)) from error

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        left = _left_to_connect(timeout)
        return _Connection(self._inner.start_tls(ssl_context, server_hostname, left))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
