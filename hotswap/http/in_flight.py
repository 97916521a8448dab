"""Generation requests between their arrival and their last byte, by request id."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import TypeVar

from hotswap.http.errors import DuplicateRequestId, RequestInvalid, ShuttingDown
from hotswap.seams import Generation

__all__ = ["InFlightRequests", "Ticket"]

T = TypeVar("T")

_SHUTDOWN = "the server is shutting down"


class InFlightRequests:
    """Keeps request ids unique and knows what to abort, and all of it at a shutdown."""

    def __init__(self) -> None:
        self._tickets: dict[str, Ticket] = {}
        self._waits: set[asyncio.Timeout] | None = set()
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(list(self._tickets.values()))

    def __contains__(self, rid: object) -> bool:
        return rid in self._tickets

    def __repr__(self) -> str:
        return f"<InFlightRequests {len(self)}{' closed' if self.closed else ''}>"

    @property
    def closed(self) -> bool:
        """True once the server is going down."""
        return self._waits is None

    async def before_closed(self, work: Callable[[], Awaitable[T]]) -> T:
        """What ``work`` returns. Raises: ShuttingDown where it waits as the server goes down.

        Cheap, for it is asked for every piece of a body: a gigabyte comes in some 16 000. A
        task for each costs more than all else that is done with them, and a cancel scope of
        anyio three times as much as this.
        """
        wait = asyncio.timeout(0 if self._waits is None else None)
        waits = set[asyncio.Timeout]() if self._waits is None else self._waits
        waits.add(wait)
        try:
            async with wait:
                return await work()
        except TimeoutError:
            if not wait.expired():
                raise
        finally:
            waits.discard(wait)
        raise ShuttingDown("the server is shutting down; send the whole request to another one")

    def reserve(self, rid: str | None, *, batch: str | None = None) -> Ticket:
        """Take ``rid`` (a fresh one for None) until the ticket is left.

        ``batch`` is the id of the client's request that this one is a part of.
        Raises: DuplicateRequestId, RequestInvalid for an empty id, ShuttingDown.
        """
        if self.closed:
            raise ShuttingDown("the server is shutting down; send the request to another one")
        rid = uuid.uuid4().hex if rid is None else rid
        if not rid:
            raise RequestInvalid("rid is empty, wanted a unique id or none")
        if rid in self._tickets:
            raise DuplicateRequestId(
                f"duplicate request id {rid!r}: a request with it is in flight; "
                "wait for it, or send another id"
            )
        ticket = self._tickets[rid] = Ticket(self, rid, number=next(self._numbers), batch=batch)
        return ticket

    def release(self, rid: str) -> None:
        """Forget ``rid``."""
        self._tickets.pop(rid, None)

    def abort(self, rid: str, *, prefix: bool = False, message: str | None = None) -> int:
        """Abort a request, or a batch, by its id; how many requests that were.

        With ``prefix`` every request whose id starts with ``rid``, so all for "".
        """
        wanted = [
            ticket
            for ticket in self
            if (ticket.rid.startswith(rid) if prefix else rid in (ticket.rid, ticket.batch))
        ]
        return sum([ticket.abort(message) for ticket in wanted])

    def close(self) -> int:
        """Abort everything and take nothing more; how many were aborted."""
        waits, self._waits = self._waits, None
        for wait in waits or ():
            wait.reschedule(0)
        tickets = list(self._tickets.values())
        for ticket in tickets:
            ticket.abort(_SHUTDOWN)
        return len(tickets)


class Ticket:
    """One request in flight. Leaving it early aborts its generation.

    ``rid`` is free again once the ticket is left. The engine lets go of an aborted
    request later, between two forward passes: it knows the request as ``engine_rid``,
    which no other request ever has. ``on_abort`` is called for a request that is
    aborted before it has a generation.
    """

    def __init__(
        self, owner: InFlightRequests, rid: str, *, number: int, batch: str | None = None
    ) -> None:
        self._owner = owner
        self.rid = rid
        self.batch = batch
        self.engine_rid: str = f"{rid}#{number}"
        self.generation: Generation | None = None
        self.on_abort: Callable[[], None] | None = None
        self.aborted: bool = False
        self.abort_message: str | None = None
        self.ended = False

    def __repr__(self) -> str:
        return f"<Ticket {self.rid} {self.state}>"

    @property
    def state(self) -> str:
        """``waiting`` until the engine has it, then ``running``, then ``ended``."""
        if self.ended:
            return "ended"
        return "waiting" if self.generation is None else "running"

    def abort(self, message: str | None = None) -> bool:
        """Ask for the end; ``message`` tells the client why. False when it has been asked for."""
        if self.ended or self.aborted:
            return False
        self.aborted, self.abort_message = True, message
        if self.generation is not None:
            self.generation.abort()
        elif self.on_abort is not None:
            self.on_abort()
        return True

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.abort()
        self._owner.release(self.rid)
