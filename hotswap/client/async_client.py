"""The asynchronous client: the same steps, on asyncio."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from os import PathLike, fspath
from types import TracebackType
from typing import Self

import httpx

from hotswap.client import commands
from hotswap.client.committing import CommitRequest, commit
from hotswap.client.drivers import AsyncDriver
from hotswap.client.feed import Feed
from hotswap.client.onlooking import ProgressCallback, beside
from hotswap.client.pushing import PushPayload, PushRequest, Tensors, Transport, push
from hotswap.client.session import Fence, ServerKind, Session
from hotswap.client.shown import ServerState, UpdateResult
from hotswap.client.sse import ServerEvent
from hotswap.client.updating import UpdateRequest, default_mode, kind_for, update
from hotswap.uninterrupted import on_worker_thread

__all__ = ["AsyncClient", "AsyncEventStream", "AsyncPausedServer"]


class AsyncClient:
    """Talks to one server, of hotswap or of SGLang. One event loop of asyncio.

    Times are in seconds and bound the whole call, retries included; ``math.inf`` is no bound.
    What it raises says what happened to the weights (``weights_after``). Use it as a context
    manager, or ``close`` it.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:30000",
        *,
        api_key: str | None = None,
        admin_key: str | None = None,
        server: ServerKind | str | None = None,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        """``server`` None asks the server whose it is, once. ``http`` replaces the HTTP
        client, which honours no proxy of the environment; its owner closes it.
        Keys are stripped of white space around them. Raises: ValueError for an address
        that is none, and for a key that no header can have; it does not repeat the key."""
        kind = None if server is None else ServerKind(server)
        self._session = Session(url, api_key=api_key, admin_key=admin_key, kind=kind)
        self._http = http or httpx.AsyncClient(trust_env=False)
        self._owned = http is None
        self._driver = AsyncDriver(self._http, self._session.address)

    def __repr__(self) -> str:
        return f"<AsyncClient {self._session.url} {self._session.kind or 'not asked yet'}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._session.url

    @property
    def kind(self) -> ServerKind | None:
        """Whose server it is; None before it was asked."""
        return self._session.kind

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        if self._owned:
            await self._http.aclose()

    async def state(self, *, within_s: float = 10.0) -> ServerState:
        """One look at the server. Raises: NoAnswer, RequestRefused, ReplyMalformed."""
        session = self._session
        return await self._driver.run(commands.state(session, budget=session.budget(within_s)))

    async def wait_ready(self, *, within_s: float = 60.0) -> None:
        """Return once a generation request would run.

        Raises: NotReady, NoAnswer, RequestRefused, ReplyMalformed.
        """
        session = self._session
        await self._driver.run(commands.wait_ready(session, budget=session.budget(within_s)))

    async def pause(self, mode: str | None = None, *, within_s: float = 60.0) -> None:
        """Close the gate; None is the server's own mode. Prefer ``paused``.

        Raises: NoAnswer, ReplyMalformed (it may be in effect); CommandError, RequestRefused.
        """
        session = self._session
        budget = session.budget(within_s)
        await self._driver.run(commands.pause(session, mode=mode, budget=budget))

    async def resume(self, *, within_s: float = 60.0) -> None:
        """Open the gate. Raises: NoAnswer, CommandError, RequestRefused, ReplyMalformed."""
        session = self._session
        await self._driver.run(commands.resume(session, budget=session.budget(within_s)))

    async def flush(
        self, *, times: int = 60, every_s: float = 1.0, within_s: float = 120.0
    ) -> int | None:
        """Drop cached prefixes, asking ``times`` times; how many, where the server tells.

        Raises: InFlight, NoAnswer, RequestRefused, ReplyMalformed.
        """
        session = self._session
        return await self._driver.run(
            commands.flush(session, times=times, every_s=every_s, budget=session.budget(within_s))
        )

    def paused(self, mode: str | None = None, *, within_s: float = 60.0) -> AsyncPausedServer:
        """A context in which the server stands still; see ``AsyncPausedServer``."""
        return AsyncPausedServer(self._driver, self._session, mode=mode, within_s=within_s)

    async def update(
        self,
        source: str | PathLike[str],
        *,
        strategy: str | None = None,
        version: str | int | None = None,
        token_step: int | None = None,
        pause_mode: str | None = None,
        flush_cache: bool = True,
        flush_times: int = 60,
        flush_every_s: float = 1.0,
        fenced: bool | None = None,
        within_s: float = 600.0,
        progress: ProgressCallback | None = None,
    ) -> UpdateResult:
        """Load a checkpoint directory of the server; see ``docs/reference/client.md``.

        ``strategy`` reads ``source`` another way. ``progress`` is called on the event loop.
        Raises: UpdateRejected, UpdateRolledBack, UpdateFailed, CommandError,
        RequestRefused, ReplyMalformed, NoAnswer, OutcomeUnknown, StillPaused; TypeError or
        ValueError for what cannot be sent.
        """
        session = self._session
        budget = session.budget(within_s)
        wanted = UpdateRequest(
            source=fspath(source),
            strategy=strategy,
            version=None if version is None else str(version),
            token_step=token_step,
            pause_mode=pause_mode,
            flush_cache=flush_cache,
            flush_times=flush_times,
            flush_every_s=flush_every_s,
        )
        kind = await self._driver.run(kind_for(session, wanted, budget=budget))
        fence: AbstractAsyncContextManager[None] = nullcontext()
        if session.wants_fence(fenced):
            fence = self.paused(pause_mode or default_mode(kind), within_s=within_s)

        async def work() -> UpdateResult:
            async with fence:
                return await self._driver.run(update(session, wanted, budget=budget))

        return await beside(work(), session, self._http, source=wanted.source, progress=progress)

    async def commit(
        self,
        version: int | None = None,
        *,
        wait_s: float = 0.0,
        label: str | int | None = None,
        token_step: int | None = None,
        pause_mode: str | None = None,
        flush_cache: bool = True,
        within_s: float = 600.0,
    ) -> UpdateResult:
        """Make live what a server that follows a stream has pulled; see ``client.md``.

        ``wait_s``: how long it may take to pull ``version``, beyond ``within_s``. Raises: as
        ``update``; NotPulled and SourceNotReady, which are UpdateRejected, for what is not there.
        """
        session = self._session
        wanted = CommitRequest(
            version=version,
            wait_s=wait_s,
            label=None if label is None else str(label),
            token_step=token_step,
            pause_mode=pause_mode,
            flush_cache=flush_cache,
        )
        budget = session.budget(within_s + wait_s)
        return await self._driver.run(commit(session, wanted, budget=budget))

    async def push(
        self,
        tensors: Tensors,
        *,
        version: str | int | None = None,
        token_step: int | None = None,
        pause_mode: str | None = None,
        flush_cache: bool = True,
        scope: str = "full",
        update_id: str | None = None,
        transport: Transport | str = Transport.AUTO,
        within_s: float = 600.0,
        progress: ProgressCallback | None = None,
    ) -> UpdateResult:
        """Bring ``tensors`` to the server as one update; see ``docs/reference/client.md``.

        They must not change before it is over. ``progress`` is that of ``update``.
        Raises: ValueError, TypeError for what cannot be sent, UpdateRejected, UpdateRolledBack,
        UpdateFailed, CommandError, RequestRefused, ReplyMalformed, NoAnswer, OutcomeUnknown;
        OSError when ``/dev/shm`` has no room and shared memory was asked for.
        """
        session = self._session
        wanted = PushRequest(
            version=None if version is None else str(version),
            token_step=token_step,
            pause_mode=pause_mode,
            flush_cache=flush_cache,
            scope=scope,
            update_id=update_id,
        )
        budget = session.budget(within_s)
        # Copying takes its time.
        make = partial(PushPayload, tensors, transport=transport, url=self.url)
        with await on_worker_thread(make) as payload:
            await self._driver.run(session.kind_of_server(budget))
            work = self._driver.run(push(session, payload, wanted, budget=budget))
            source = payload.source
            return await beside(work, session, self._http, source=source, progress=progress)

    def events(self, *, after: str | None = None, reconnect_s: float = 60.0) -> AsyncEventStream:
        """What happens on the server, from the event with the id ``after`` on."""
        feed = Feed(self._session, after=after, reconnect_s=reconnect_s)
        return AsyncEventStream(AsyncDriver(self._http, self._session.address), feed)


class AsyncPausedServer:
    """The server stands still inside, and goes on after it, however it ended.

    It is continued when the pause itself was not answered, too. When that fails after an
    error of the body, the error gets a note; without one, ``StillPaused`` is raised.
    """

    def __init__(
        self, driver: AsyncDriver, session: Session, *, mode: str | None, within_s: float
    ) -> None:
        self._driver = driver
        self._session = session
        self._fence = Fence(mode=mode)
        self._within_s = within_s

    def __repr__(self) -> str:
        return f"<AsyncPausedServer {self._session.url} {self._fence.mode or 'by its own mode'}>"

    async def __aenter__(self) -> None:
        budget = self._session.budget(self._within_s)
        try:
            await self._driver.run(commands.enter_fence(self._session, self._fence, budget=budget))
        except BaseException as error:
            await self._leave(error, entering=True)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._leave(error, entering=False)

    async def _leave(self, error: BaseException | None, *, entering: bool) -> None:
        budget = self._session.budget(self._within_s)
        await self._driver.run_to_the_end(
            commands.leave_fence(
                self._session, self._fence, error=error, entering=entering, budget=budget
            )
        )


class AsyncEventStream:
    """Iterate it; leave the context to let go of the connection.

    It ends when the server says that it has ended. Raises: NoAnswer, RequestRefused,
    ReplyMalformed.
    """

    def __init__(self, driver: AsyncDriver, feed: Feed) -> None:
        self._driver = driver
        self._feed = feed

    def __repr__(self) -> str:
        return f"<AsyncEventStream after {self._feed.last_id}>"

    @property
    def last_id(self) -> str | None:
        """What to begin after next time, to miss nothing."""
        return self._feed.last_id

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._driver.close_stream()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ServerEvent:
        event = await self._driver.run(self._feed.next())
        if event is None:
            raise StopAsyncIteration
        return event
