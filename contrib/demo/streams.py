"""Eight clients that never stop asking, and an account of every request."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import nan
from typing import Any

import anyio
import httpx

from contrib.demo.client import Client
from contrib.demo.failed import DemoFailed

__all__ = ["PROMPTS", "UNNAMED", "Load", "Span", "Stream"]

UNNAMED = "null"
"""How a version is shown that nobody named: as JSON shows it."""

# How long a stream may take to its first token after a swap before nobody waits for it.
MOVED_S = 30.0

PROMPTS = (
    "The best way to learn is",
    "My name is",
    "In the middle of the city",
    "A good teacher always",
    "The first computer was",
    "When it rains,",
    "The secret of a happy life is",
    "Far away from here,",
    "People often say that",
    "On the last day of summer",
    "The doctor told me that",
)

SAMPLING: dict[str, Any] = {"max_new_tokens": 64, "temperature": 0.7, "top_p": 0.95}


@dataclass(frozen=True, slots=True)
class Span:
    """How many tokens of a stream one version of the weights made, in a row."""

    version: str
    tokens: int


@dataclass(slots=True)
class Stream:
    """One client: its tokens, the versions that made them, how its requests ended.

    ``text`` is the newest text. ``gaps_s`` are the waits between two tokens of one
    request since it was last emptied. A version that nobody named is ``null``, as in
    the replies.
    """

    number: int
    done: int = 0
    aborted: int = 0
    lost: list[str] = field(default_factory=list)
    tokens: int = 0
    crossed: int = 0
    spans: list[Span] = field(default_factory=list)
    text: str = ""
    gaps_s: list[float] = field(default_factory=list)
    _last_token: float | None = None

    def begin(self) -> None:
        """A new request: the wait for its first token is no gap."""
        self._last_token = None

    def token_event(self, event: dict[str, Any], seen: int) -> int:
        """Note an event that may bring tokens past ``seen``; returns how many there are."""
        count = int(event["meta_info"]["completion_tokens"])
        if count > seen:
            now = time.perf_counter()
            if self._last_token is not None:
                self.gaps_s.append(now - self._last_token)
            self._last_token = now
            self.tokens += count - seen
            self.text = event["text"]
        return count

    def end(self, meta: dict[str, Any]) -> None:
        """Account for a request by its last ``meta_info``."""
        reason = (meta["finish_reason"] or {}).get("type")
        if reason in ("stop", "length"):
            self.done += 1
        elif reason == "abort":
            self.aborted += 1
        else:
            self.lost.append(f"ended with finish_reason {reason}")
        spans = meta["weight_versions"]
        self.crossed += len(spans) > 1
        for span in spans:
            self._add_span(span["version"] or UNNAMED, span["end"] - span["start"])

    def _add_span(self, version: str, tokens: int) -> None:
        if self.spans and self.spans[-1].version == version:
            tokens += self.spans.pop().tokens
        self.spans.append(Span(version, tokens))


class Load:
    """``count`` streams against one server, until ``stop``; then the last requests finish."""

    def __init__(self, client: Client, count: int) -> None:
        self.streams = [Stream(number) for number in range(count)]
        self._client = client
        self._stopping = False
        self._news = anyio.Event()

    def __repr__(self) -> str:
        return f"<Load of {len(self.streams)} streams, {self.tokens} tokens>"

    @property
    def tokens(self) -> int:
        """Tokens received by all streams."""
        return self._sum(lambda stream: stream.tokens)

    @property
    def done(self) -> int:
        """Requests that ended by themselves."""
        return self._sum(lambda stream: stream.done)

    @property
    def aborted(self) -> int:
        """Requests that the server ended early, with what they had."""
        return self._sum(lambda stream: stream.aborted)

    @property
    def lost(self) -> list[str]:
        """Requests that ended any other way, each with the reason."""
        return [f"stream {s.number}: {reason}" for s in self.streams for reason in s.lost]

    @property
    def longest_gap_ms(self) -> float:
        """The longest silence between two tokens of any stream; NaN before there was one."""
        return 1000 * max(self._gaps_s(), default=nan)

    @property
    def median_gap_ms(self) -> float:
        """The usual wait between two tokens of a stream; NaN before there was one."""
        return 1000 * statistics.median(self._gaps_s() or [nan])

    def forget_gaps(self) -> None:
        """Start measuring gaps anew."""
        for stream in self.streams:
            stream.gaps_s.clear()

    async def everyone_moved(self) -> None:
        """Return once every stream has had a token after this call, or after a bound."""
        before = [stream.tokens for stream in self.streams]
        with anyio.move_on_after(MOVED_S):
            while not all(s.tokens > old for s, old in zip(self.streams, before, strict=True)):
                await self._news.wait()

    def stop(self) -> None:
        """Send no further request; ``run`` returns when those in flight have ended."""
        self._stopping = True

    async def run(self) -> None:
        """Run every stream."""
        async with anyio.create_task_group() as group:
            for stream in self.streams:
                group.start_soon(self._run_stream, stream)

    async def _run_stream(self, stream: Stream) -> None:
        turn = stream.number
        while not self._stopping:
            try:
                await self._one_request(stream, PROMPTS[turn % len(PROMPTS)], seed=turn)
            except (httpx.HTTPError, DemoFailed, ValueError, KeyError) as error:
                stream.lost.append(f"{type(error).__name__}: {error}")
                # A server that is gone refuses at once: do not spin on it.
                await anyio.sleep(0.5)
            turn += len(self.streams)

    async def _one_request(self, stream: Stream, prompt: str, *, seed: int) -> None:
        stream.begin()
        seen = 0
        meta: dict[str, Any] | None = None
        async for event in self._client.stream(prompt, SAMPLING | {"seed": seed}):
            if "error" in event:
                raise DemoFailed(str(event["error"].get("message", event["error"])))
            seen = stream.token_event(event, seen)
            self._tell()
            meta = event["meta_info"]
        if meta is None:
            raise DemoFailed("the stream closed without an event")
        stream.end(meta)

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    def _gaps_s(self) -> list[float]:
        return [gap for stream in self.streams for gap in stream.gaps_s]

    def _sum(self, value: Callable[[Stream], int]) -> int:
        return sum(value(stream) for stream in self.streams)
