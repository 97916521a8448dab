"""The client that notes when each event of many streams ended."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from contrib.bench.streams import EventCount, Streams

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_events_are_counted_however_they_are_cut(size: int) -> None:
    # Chunk lengths lie between, and a text may have line breaks in it, escaped.
    sent = _HEAD + b'1c\r\ndata: {"text":"a\\n\\nb"}\n\n\r\n0e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n'
    events = EventCount()

    counts = [events.push(sent[at : at + size]) for at in range(0, len(sent), size)]

    assert sum(counts) == 2


@contextmanager
def _answering(answer: Callable[[socket.socket, list[int]], None]) -> Iterator[int]:
    """A port where ``answer`` gets every connection and the prompt that came on it."""

    def serve(connection: socket.socket) -> None:
        with connection:
            asked = b""
            while not asked.endswith(b"}"):
                asked += connection.recv(65536)
            body = json.loads(asked.partition(b"\r\n\r\n")[2])
            connection.sendall(_HEAD)
            answer(connection, body["input_ids"])

    threads = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                thread = threading.Thread(target=serve, args=(connection,))
                thread.start()
                threads.append(thread)

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
    for thread in threads:
        thread.join()


def _event(text: str) -> bytes:
    return f"data: {text}\n\n".encode()


def test_every_token_of_every_stream_has_its_time() -> None:
    go_on = threading.Event()

    def answer(connection: socket.socket, prompt: list[int]) -> None:
        connection.sendall(_event("{}"))
        go_on.wait(30)
        connection.sendall(_event("{}") + _event("[DONE]"))

    with _answering(answer) as port:
        streams = Streams(port, [[1], [2]], tokens=2)
        streams.await_tokens(1)
        go_on.set()
        arrivals = streams.end()

    assert [len(one) for one in arrivals] == [2, 2]
    assert all(first < second for first, second in arrivals)


def test_a_stream_that_ends_early_is_told_of() -> None:
    def answer(connection: socket.socket, prompt: list[int]) -> None:
        connection.sendall(_event('{"error":"no weights"}'))

    with _answering(answer) as port:
        streams = Streams(port, [[1]], tokens=2)
        with pytest.raises(RuntimeError, match=r"1 events, wanted 3(?s:.*)no weights"):
            streams.end()


def test_waiting_for_tokens_that_cannot_come_ends() -> None:
    def answer(connection: socket.socket, prompt: list[int]) -> None:
        connection.sendall(_event("{}"))

    with _answering(answer) as port:
        streams = Streams(port, [[1], [2]], tokens=2)
        with pytest.raises(RuntimeError, match="a stream has 1 tokens, wanted 2"):
            streams.await_tokens(2)


def test_streams_that_are_cut_keep_what_came() -> None:
    gone = threading.Event()

    def answer(connection: socket.socket, prompt: list[int]) -> None:
        connection.sendall(_event("{}") * prompt[0])
        # More comes until nobody reads any more.
        while not gone.is_set():
            try:
                connection.sendall(_event("{}"))
            except OSError:
                gone.set()

    with _answering(answer) as port:
        streams = Streams(port, [[2]], tokens=3)
        streams.await_tokens(2)
        assert streams.most >= 2
        arrivals = streams.cut()
        assert gone.wait(30)

    # No more than were asked for: the end of a text is an event too.
    assert 2 <= len(arrivals[0]) <= 3
    assert arrivals[0] == sorted(arrivals[0])
