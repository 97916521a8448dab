"""A server on loopback that is slow on the wire itself: one byte at a time, for ever."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["dripping"]

_EVERY_S = 0.02


@contextmanager
def dripping(begin: bytes, *, reads: bool = True) -> Iterator[str]:
    """The address of a server that answers with ``begin`` and then with one ``a`` after another.

    Without ``reads`` it takes one byte after another of a POST, and never answers; a GET is
    answered with ``begin`` at once.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # Little of a request is taken before somebody reads it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server = _Server(listener, begin, reads=reads)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.end()


class _Server:
    def __init__(self, listener: socket.socket, begin: bytes, *, reads: bool) -> None:
        self._listener = listener
        self._begin = begin
        self._reads = reads
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def end(self) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        with suppress(OSError):  # the end
            while True:
                peer, _ = self._listener.accept()
                thread = threading.Thread(target=self._answer, args=(peer,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _answer(self, peer: socket.socket) -> None:
        peer.settimeout(5)
        with peer, suppress(OSError):  # the client has gone
            if self._reads:
                peer.recv(65536)
                peer.sendall(self._begin)
            elif peer.recv(1) == b"G":
                peer.recv(65536)
                peer.sendall(self._begin)
                return
            while not self._over.wait(_EVERY_S):
                if self._reads:
                    peer.sendall(b"a")
                elif not peer.recv(1):
                    return
