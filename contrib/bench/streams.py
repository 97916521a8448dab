"""Many streams of one server, read on one thread that does next to nothing.

The cores that decode are the client's too. So while tokens come it only notes when, and
counts the ends of events: a text has none inside, as JSON escapes its line breaks. What
the server said is looked at only when the count is wrong.
"""

from __future__ import annotations

import json
import selectors
import socket
import threading
import time
from collections.abc import Sequence

__all__ = ["EventCount", "Streams"]

_READ_BYTES = 1 << 20
_DEADLINE_S = 120.0
_END = b"\n\n"


class EventCount:
    """Feed what arrives of a stream of server-sent events, however it is cut."""

    def __init__(self) -> None:
        self._tail = b""

    def push(self, received: bytes) -> int:
        """How many events end in ``received``."""
        known = self._tail + received
        # An end has two bytes: one of them at most is in what came before.
        self._tail = b"" if known.endswith(_END) else known[-1:]
        return known.count(_END)


class _Stream:
    """One connection: when its events ended (``perf_counter``), and its bytes."""

    def __init__(self, port: int, prompt: Sequence[int], *, tokens: int) -> None:
        sampling = {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
        asked = {"input_ids": list(prompt), "sampling_params": sampling, "stream": True}
        body = json.dumps(asked).encode()
        head = (
            "POST /generate HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=_DEADLINE_S)
        self.socket.sendall(head.encode() + body)
        self.ends: list[float] = []
        self.received: list[bytes] = []
        self._events = EventCount()

    def read(self) -> bool:
        """Take what has come; false at the end."""
        received = self.socket.recv(_READ_BYTES)
        now = time.perf_counter()
        self.received.append(received)
        self.ends.extend([now] * self._events.push(received))
        return bool(received)


class Streams:
    """Greedy streams, ``tokens`` each, one for each prompt. They begin at once."""

    def __init__(self, port: int, prompts: Sequence[Sequence[int]], *, tokens: int) -> None:
        self._tokens = tokens
        self._news = threading.Condition()
        self._error: Exception | None = None
        self._is_over = self._is_cut = False
        self._streams = [_Stream(port, prompt, tokens=tokens) for prompt in prompts]
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Streams {len(self._streams)} of {self._tokens} tokens>"

    def await_tokens(self, count: int) -> None:
        """Until every stream has ``count`` tokens. Raises: RuntimeError."""
        with self._news:
            self._news.wait_for(lambda: self._is_over or self._least >= count, _DEADLINE_S)
        if self._least < count:
            raise RuntimeError(
                f"a stream has {self._least} tokens, wanted {count}"
            ) from self._error

    def end(self) -> list[list[float]]:
        """When each token of each stream came, once all have ended.

        Raises: RuntimeError when a stream was not one event a token, and one to end it.
        """
        self._thread.join(_DEADLINE_S)
        if self._thread.is_alive() or self._error is not None:
            raise RuntimeError("the streams did not end") from self._error
        for one in self._streams:
            if len(one.ends) != self._tokens + 1:
                shown = b"".join(one.received)[-300:].decode(errors="replace")
                raise RuntimeError(
                    f"a stream had {len(one.ends)} events, wanted {self._tokens + 1}; "
                    f"it ended with {shown}"
                )
        return [one.ends[:-1] for one in self._streams]

    def cut(self) -> list[list[float]]:
        """When each token has come so far; closed connections then end the requests.

        Raises: RuntimeError when a stream has broken off by itself.
        """
        self._is_cut = True
        self._thread.join(_DEADLINE_S)
        if self._thread.is_alive() or self._error is not None:
            raise RuntimeError("the streams cannot be cut") from self._error
        return [one.ends[: self._tokens] for one in self._streams]

    @property
    def most(self) -> int:
        """How many tokens the stream has that has most."""
        return max(len(one.ends) for one in self._streams)

    @property
    def _least(self) -> int:
        return min(len(one.ends) for one in self._streams)

    def _read(self) -> None:
        try:
            with selectors.DefaultSelector() as selector:
                for one in self._streams:
                    selector.register(one.socket, selectors.EVENT_READ, one)
                while selector.get_map() and not self._is_cut:
                    ready = selector.select(_DEADLINE_S)
                    if not ready:
                        raise RuntimeError(f"nothing came for {_DEADLINE_S:.0f} s")
                    for key, _ in ready:
                        stream: _Stream = key.data
                        if not stream.read():
                            selector.unregister(stream.socket)
                    with self._news:
                        self._news.notify_all()
        except Exception as error:  # shown by whoever waits for the streams
            self._error = error
        finally:
            for one in self._streams:
                one.socket.close()
            with self._news:
                self._is_over = True
                self._news.notify_all()
