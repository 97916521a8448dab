"""A server at its limit of descriptors rests, and takes connections again when it may."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from hotswap.listening import ListeningConfig, ListeningSocket, is_told

NONE, ENOUGH = 0, 1_000_000


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def full(taken: socket.socket) -> Iterator[ListeningSocket]:
    (listening,) = ListeningConfig(taken).create_sockets().insecure_sockets
    assert isinstance(listening, ListeningSocket)
    listening.limit = NONE
    with listening:
        yield listening


def client_of(listening: socket.socket) -> socket.socket:
    return socket.create_connection(listening.getsockname(), timeout=30)


def test_only_the_first_refusal_is_a_lack_of_descriptors(
    full: ListeningSocket, caplog: pytest.LogCaptureFixture
) -> None:
    assert repr(full) == f"<ListeningSocket {full.fileno()} limit=0>"
    with client_of(full):
        with (
            caplog.at_level(logging.WARNING),
            pytest.raises(OSError, match="Too many open files") as refused,
        ):
            full.accept()
        assert refused.value.errno == errno.EMFILE
        for _ in range(100):
            with pytest.raises(BlockingIOError):
                full.accept()
        (line,) = caplog.records
        assert "no descriptor is left for another connection" in line.getMessage()

        full.limit = ENOUGH
        taken, _ = full.accept()
        taken.close()


def test_some_are_left_for_the_server_itself(full: ListeningSocket) -> None:
    with ExitStack() as held, client_of(full):
        for _ in range(64):
            held.callback(os.close, os.dup(full.fileno()))
        lowest = os.dup(full.fileno())
        os.close(lowest)
        full.limit = lowest + 1
        with pytest.raises(OSError, match="Too many open files"):
            full.accept()
        full.limit = 2 * lowest
        full.accept()[0].close()


def test_other_errors_are_as_they_are(full: ListeningSocket) -> None:
    full.limit = ENOUGH
    with pytest.raises(BlockingIOError, match="Resource temporarily unavailable"):
        full.accept()


async def test_a_full_server_is_asked_once_a_second(full: ListeningSocket) -> None:
    told: list[dict[str, Any]] = []
    hears = asyncio.Event()

    def note(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        told.append(context)
        hears.set()

    answered = asyncio.Event()

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        answered.set()

    asyncio.get_running_loop().set_exception_handler(note)
    async with await asyncio.start_server(answer, sock=full, backlog=1024):
        with client_of(full), client_of(full):
            await hears.wait()
            # As many turns as a loop without work needs to spin.
            for _ in range(1000):
                await asyncio.sleep(0)
            assert [is_told(context) for context in told] == [True]

            full.limit = ENOUGH
            async with asyncio.timeout(30):
                await answered.wait()
    assert len(told) == 1


@pytest.mark.parametrize(
    ("context", "told"),
    [
        ({"exception": OSError(errno.EMFILE, "full"), "socket": None}, True),
        ({"exception": OSError(errno.EMFILE, "full")}, False),
        ({"exception": OSError(errno.EBADF, "bad"), "socket": None}, False),
        ({"message": "something else"}, False),
    ],
)
def test_what_the_socket_has_told_need_not_be_told_again(
    context: dict[str, object], told: bool
) -> None:
    assert is_told(context) is told


def test_a_config_says_what_it_listens_on(taken: socket.socket) -> None:
    assert repr(ListeningConfig(taken)) == f"<ListeningConfig {taken.fileno()}>"
