"""Ways in which a push ends, and what is counted meanwhile: for the matrices of A27."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotswap.controller import Controller
from hotswap.http import create_app
from hotswap.plugins import Plugins
from hotswap.push import SafetensorsBody
from hotswap.settings import Settings
from hotswap.testing.fakes import FakeEngine, fake_weights
from hotswap.types import InFlightCounts, PauseMode, Placement
from tests.unit.http.push_sender import Sender, users_of

__all__ = [
    "LIMIT_BYTES",
    "PUSH",
    "TENSORS",
    "Case",
    "Counts",
    "Server",
    "a_commit_fails",
    "a_session",
    "a_session_in_use",
    "a_write_fails",
    "an_ended_session",
    "another_update_runs",
    "asleep",
    "ended",
    "goes_down",
    "going_down",
    "in_flight",
    "is_gone",
    "never_ends",
    "never_loaded",
    "one_of",
    "paused",
]

TENSORS, PUSH = "/update_weights_from_tensor", "/hotswap/v1/push"
LIMIT_BYTES = 16 * 1024


def own_segments() -> set[Path]:
    return set(Path("/dev/shm").glob(f"torch_{os.getpid()}_*"))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class Server:
    """The real app and controller on a fake engine; asked by ASGI, piece by piece."""

    def __init__(self, **settings: Any) -> None:
        self.engine = FakeEngine()
        self.controller = Controller(self.engine, strategies={}, queue_wait_s=0.0)
        values: dict[str, Any] = {"allow_weight_update": True, "model": "A", **settings}
        self.app = create_app(
            self.controller,
            self.engine,
            Settings(max_http_request_bytes=LIMIT_BYTES, **values),
            plugins=Plugins(strategies={}),
        )
        self.served = self.app.state.served

    async def ask(
        self,
        path: str,
        pieces: Sequence[bytes],
        *,
        method: str = "POST",
        headers: Sequence[tuple[str, str]] = (),
        at_reply: Callable[[], object] = lambda: None,
        after_pieces: Callable[[], Awaitable[bool]] | None = None,
    ) -> int | None:
        """The status of the reply, or None. ``after_pieces`` comes in the place of the end of the
        body, and says whether the client is gone then."""
        waiting, status = list(pieces), list[int]()
        told = {"content-type": "application/json", **dict(headers)}

        async def receive() -> dict[str, Any]:
            if waiting:
                more = len(waiting) > 1 or after_pieces is not None
                return {"type": "http.request", "body": waiting.pop(0), "more_body": more}
            if after_pieces is not None and await after_pieces():
                return {"type": "http.disconnect"}
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])
                at_reply()

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [
                (name.encode(), value.encode())
                for name, value in {"transfer-encoding": "chunked", **told}.items()
            ],
        }
        async with asyncio.timeout(30):
            await self.app(scope, receive, send)
        return status[0] if status else None

    async def done(self, path: str, **body: object) -> None:
        assert await self.ask(path, [json.dumps(body).encode()]) == 200


class Counts:
    """Of references, each time that it is called; nothing else may change meanwhile."""

    def __init__(self, segment: Path) -> None:
        self._segment = segment
        self._before = descriptors(), own_segments()
        self.users = [users_of(segment)]

    def __call__(self) -> None:
        self.users.append(users_of(self._segment))
        open_before, segments = self._before
        assert descriptors() <= open_before
        assert own_segments() == segments


Prepare = Callable[[Server, AsyncExitStack], Awaitable[object]]


async def nothing(server: Server, stack: AsyncExitStack) -> None:
    """It serves."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way in which a request ends, and whether the server has read what it names."""

    status: int | None
    read: bool = True
    fields: Callable[[Sender], dict[str, object]] = lambda sender: {}
    raw: Callable[[bytes], list[bytes]] = lambda body: [body]
    prepare: Prepare = nothing
    method: str = "POST"
    path: str = TENSORS
    headers: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    after: Callable[[Server], Awaitable[bool]] | None = None


def one_of(world_size: int, *, rank: int = 0) -> Prepare:
    async def prepare(server: Server, stack: AsyncExitStack) -> None:
        server.served.placement = Placement(rank=rank, world_size=world_size)

    return prepare


async def paused(server: Server, stack: AsyncExitStack) -> None:
    await server.controller.pause(PauseMode.ABORT)


async def in_flight(server: Server, stack: AsyncExitStack) -> None:
    server.engine.in_flight = InFlightCounts(running=1, holding_kv=1)


async def asleep(server: Server, stack: AsyncExitStack) -> None:
    await server.done("/release_memory_occupation")


async def never_loaded(server: Server, stack: AsyncExitStack) -> None:
    await asleep(server, stack)
    await server.done("/resume_memory_occupation")


@asynccontextmanager
async def held(server: Server, step: str, work: Awaitable[object]) -> AsyncIterator[None]:
    """Something that runs for as long as the block lasts."""
    hold = server.engine.steps.hold(step)
    task = asyncio.ensure_future(work)
    await hold.arrived.wait()
    yield
    hold.release()
    await task


async def another_update_runs(server: Server, stack: AsyncExitStack) -> None:
    body = b"".join(SafetensorsBody(fake_weights(2.0).items()))
    work = server.ask(PUSH, [body], headers=[("content-type", "application/octet-stream")])
    await stack.enter_async_context(held(server, "write", work))


async def a_session(server: Server, stack: AsyncExitStack) -> None:
    await server.done("/hotswap/v1/begin", update_id="u", scope="partial")


async def an_ended_session(server: Server, stack: AsyncExitStack) -> None:
    await a_session(server, stack)
    await server.done("/hotswap/v1/abort", update_id="u")


async def a_session_in_use(server: Server, stack: AsyncExitStack) -> None:
    await a_session(server, stack)
    session = server.controller.sessions.open
    assert session is not None
    turn, taken, over = session.turns.turn(), asyncio.Event(), asyncio.Event()

    async def another_chunk() -> None:
        async with turn:
            taken.set()
            await over.wait()

    group = await stack.enter_async_context(asyncio.TaskGroup())
    group.create_task(another_chunk())
    stack.callback(over.set)
    await taken.wait()


async def a_write_fails(server: Server, stack: AsyncExitStack) -> None:
    server.engine.steps.fail("tensor", RuntimeError("no"))


async def a_commit_fails(server: Server, stack: AsyncExitStack) -> None:
    server.engine.steps.fail("commit", RuntimeError("no"))


async def going_down(server: Server, stack: AsyncExitStack) -> None:
    server.served.begin_shutdown()


async def goes_down(server: Server) -> bool:
    server.served.begin_shutdown()
    await asyncio.sleep(0)
    return False


async def never_ends(server: Server) -> bool:
    return False


async def is_gone(server: Server) -> bool:
    return True


async def ended(case: Case, server: Server, body: bytes, counts: Counts) -> int | None:
    """The status of the reply; counted when that begins, and afterwards."""
    after = case.after
    status = await server.ask(
        case.path,
        case.raw(body),
        method=case.method,
        headers=list(case.headers.items()),
        at_reply=counts,
        after_pieces=None if after is None else lambda: after(server),
    )
    counts()
    return status
