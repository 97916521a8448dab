"""A server as its clients see it: short calls that assert, and streams that are watched."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import anyio
import httpx

__all__ = ["LIMIT_S", "Client", "Snapshot", "Stream", "Streams", "client_of", "text_of"]

LIMIT_S = 60.0
"""No call of these tests may take longer, whatever else runs (O4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that a failed update must leave as it was (O3)."""

    checksums: dict[str, str]
    version: dict[str, Any]
    state: str
    facts: dict[str, Any]
    reasons: list[str]
    model_path: str
    health: tuple[int, str]


class Client:
    """Calls to one server, over loopback or straight into an app."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    def __repr__(self) -> str:
        return f"<Client {self.http.base_url}>"

    async def call(self, method: str, path: str, body: object = None) -> httpx.Response:
        """One request. Raises: TimeoutError when it is not answered within ``LIMIT_S``."""
        async with asyncio.timeout(LIMIT_S):
            return await self.http.request(method, path, json=body)

    async def get(self, path: str) -> tuple[int, Any]:
        """Status and body."""
        reply = await self.call("GET", path)
        return reply.status_code, reply.json()

    async def post(self, path: str, **body: object) -> tuple[int, Any]:
        """Status and body."""
        reply = await self.call("POST", path, body)
        return reply.status_code, reply.json()

    async def done(self, path: str, **body: object) -> Any:
        """The body of a POST that has to succeed."""
        status, reply = await self.post(path, **body)
        assert status == 200, (path, body, status, reply)
        return reply

    async def pause(self, mode: str) -> Any:
        """Pause and return the reply."""
        return await self.done("/pause_generation", mode=mode)

    async def resume(self) -> Any:
        """Continue and return the reply."""
        return await self.done("/continue_generation")

    async def update(self, directory: Path | str, **fields: object) -> Any:
        """A disk update that has to succeed."""
        return await self.done("/update_weights_from_disk", model_path=str(directory), **fields)

    async def generate(self, input_ids: Sequence[int], tokens: int, **fields: object) -> Any:
        """One greedy reply that has to succeed."""
        return await self.done("/generate", **generate_body(input_ids, tokens), **fields)

    async def greedy(self, prompts: Iterable[Sequence[int]], tokens: int) -> list[list[int]]:
        """The output ids of each prompt, all asked for at once."""
        replies = await asyncio.gather(*(self.generate(prompt, tokens) for prompt in prompts))
        return [reply["output_ids"] for reply in replies]

    async def checksums(self) -> dict[str, str]:
        """Of every parameter and buffer."""
        reply = await self.done("/weights_checker", action="checksum")
        return dict(reply["ranks"][0]["checksums"])

    async def state(self) -> Any:
        """``/hotswap/v1/state``."""
        return (await self.get("/hotswap/v1/state"))[1]

    async def version(self) -> Any:
        """``/get_weight_version``."""
        return (await self.get("/get_weight_version"))[1]

    async def until_status(self, holds: Callable[[Any], bool]) -> Any:
        """Ask for ``/status`` until it is as wanted: for what a server tells nobody else."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                status = (await self.get("/status"))[1]
                if holds(status):
                    return status
                # Asking without a pause would take the time of the work that is waited for.
                await asyncio.sleep(0.01)

    async def updates(self) -> dict[str, int]:
        """How updates have ended so far, by strategy and outcome."""
        return dict((await self.get("/status"))[1]["counters"]["updates"])

    async def snapshot(self) -> Snapshot:
        """What a failed update must leave as it is."""
        state, (_, status) = await self.state(), await self.get("/status")
        # Empty in one of the dialects.
        health = await self.call("GET", "/health")
        return Snapshot(
            checksums=await self.checksums(),
            version=await self.version(),
            state=state["state"],
            facts=state["facts"],
            reasons=state["reasons"],
            model_path=status["model_path"],
            health=(health.status_code, health.text),
        )


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Client]:
    """A client of the server at ``url``; any number of connections."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=url, timeout=LIMIT_S, limits=limits, trust_env=False
    ) as http:
        yield Client(http)


@dataclass(slots=True)
class Stream:
    """One streamed request, read to its end by a task of its own."""

    task: asyncio.Task[None] | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    status: int | None = None
    ended: bool = False
    event: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def tokens(self) -> list[int]:
        """Output ids so far."""
        return list(self.event.get("output_ids", ()))

    @property
    def meta(self) -> dict[str, Any]:
        """``meta_info`` so far."""
        return dict(self.event.get("meta_info", {}))

    async def until(self, holds: Callable[[Stream], bool], *, or_end: bool = False) -> None:
        """Wait until ``holds`` does, or for the end of the reply if that is good enough.

        Raises: TimeoutError; AssertionError at an end that came first.
        """
        async with asyncio.timeout(LIMIT_S), self.news:
            while not holds(self) and not self.ended:
                await self.news.wait()
        seen = f"ended first: {self.status} {self.error or self.meta}"
        assert or_end or holds(self), seen

    async def has_tokens(self, count: int = 1) -> None:
        """Wait until ``count`` tokens have come."""
        await self.until(lambda stream: len(stream.tokens) >= count)

    async def finished(self) -> dict[str, Any]:
        """Wait for the end of a reply that has to be whole, and return the last event."""
        assert self.task is not None
        async with asyncio.timeout(LIMIT_S):
            await asyncio.wait([self.task])
        self.task.result()
        assert self.status == 200, (self.status, self.error)
        assert self.error is None, self.error
        assert self.meta.get("finish_reason") is not None, self.event
        return self.event

    async def read(self, http: httpx.AsyncClient, body: object) -> None:
        """Run the request; ``event`` is always the newest one."""
        try:
            with self.scope:
                await self._read(http, body)
        finally:
            self.ended = True
            async with self.news:
                self.news.notify_all()

    async def _read(self, http: httpx.AsyncClient, body: object) -> None:
        async with http.stream("POST", "/generate", json=body) as reply:
            self.status = reply.status_code
            if reply.status_code != 200:
                self.error = json.loads(await reply.aread())["error"]
                return
            await self._read_events(reply)

    async def _read_events(self, reply: httpx.Response) -> None:
        async for line in reply.aiter_lines():
            if not line.startswith("data:") or line.endswith("[DONE]"):
                continue
            event = json.loads(line.removeprefix("data:"))
            async with self.news:
                if "error" in event:
                    self.error = event["error"]
                else:
                    self.event = event
                self.news.notify_all()


class Streams:
    """Starts streams; leaving the context ends those that still run, and raises nothing."""

    def __init__(self, client: Client) -> None:
        self._http = client.http
        self._streams: list[Stream] = []

    def __repr__(self) -> str:
        return f"<Streams {len(self._streams)}>"

    def start(self, input_ids: Sequence[int], tokens: int) -> Stream:
        """Begin one request of exactly ``tokens`` output tokens."""
        stream = Stream()
        body = generate_body(input_ids, tokens) | {"stream": True}
        stream.task = asyncio.get_running_loop().create_task(stream.read(self._http, body))
        self._streams.append(stream)
        return stream

    async def __aenter__(self) -> Streams:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Task.cancel() would go through the shield under which httpcore closes connections.
        for stream in self._streams:
            stream.scope.cancel()
        if tasks := [stream.task for stream in self._streams if stream.task]:
            await asyncio.wait(tasks)


def generate_body(input_ids: Sequence[int], tokens: int) -> dict[str, Any]:
    """A greedy request that runs to its last token, whatever comes."""
    sampling = {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
    return {"input_ids": list(input_ids), "sampling_params": sampling}


def text_of(reply: Any) -> str:
    """The message of an error reply."""
    return str(reply["error"]["message"])
