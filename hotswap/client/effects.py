"""What the client's steps ask of whoever runs them.

Rule: everything that the client does is a generator that yields these and is sent the
answers. It opens no socket and never sleeps, so that the blocking client and the
asynchronous one run the same steps (:mod:`hotswap.client.drivers`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

__all__ = [
    "CloseStream",
    "Content",
    "Effect",
    "NoReply",
    "OpenStream",
    "ReadStream",
    "Reply",
    "Send",
    "Sleep",
    "Steps",
    "close_stream",
    "open_stream",
    "read_stream",
    "send",
    "sleep",
]

T = TypeVar("T")


class NoReply(Exception):
    """No whole reply came. ``sent`` is false when the server cannot have seen the request.

    ``final`` is true when the request itself is wrong: sending it again would not help.
    """

    def __init__(self, reason: str, *, sent: bool, final: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent
        self.final = final


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One reply: status, headers (names in lower case), and the whole body.

    That of a stream has no body. ``flaw`` says why the body was not read, if it was not.
    ``key`` is the name of the key that the request brought, and ``hide`` takes the client's
    keys out of a text that is shown of the reply. ``after_loss``: the same request was sent
    before, and its reply was lost.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    flaw: str | None = None
    key: str | None = field(default=None, compare=False)
    hide: Callable[[str], str] = field(default=str, repr=False, compare=False)
    after_loss: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A body of ``length`` bytes, made anew by every iteration of ``pieces``."""

    pieces: Iterable[bytes | memoryview]
    length: int
    media_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One request. ``body`` goes out as JSON, ``content`` as it is; ``timeout_s`` bounds the
    time until its reply is whole, however slowly that comes."""

    method: str
    path: str
    timeout_s: float
    body: Mapping[str, object] | None = None
    content: Content | None = None
    # Not shown: a key is in there.
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """Wait."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStream:
    """Begin a reply whose body is read in pieces: ``open_s`` bounds the time until it begins,
    ``timeout_s`` the wait for each piece."""

    path: str
    timeout_s: float
    open_s: float
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStream:
    """The next piece of the open stream; empty at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseStream:
    """Let go of the open stream; nothing when there is none."""


Effect: TypeAlias = Send | Sleep | OpenStream | ReadStream | CloseStream
Steps: TypeAlias = Generator[Effect, Any, T]


def send(request: Send) -> Steps[Reply]:
    """The reply. Raises: NoReply."""
    reply: Reply = yield request
    return reply


def sleep(seconds: float) -> Steps[None]:
    """Wait so many seconds."""
    yield Sleep(seconds=seconds)


def open_stream(request: OpenStream) -> Steps[Reply]:
    """Status and headers of the reply. Raises: NoReply."""
    reply: Reply = yield request
    return reply


def read_stream() -> Steps[bytes]:
    """The next piece. Raises: NoReply."""
    piece: bytes = yield ReadStream()
    return piece


def close_stream() -> Steps[None]:
    """Let go of the open stream."""
    yield CloseStream()
