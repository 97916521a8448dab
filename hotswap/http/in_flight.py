"""Generation requests between their arrival and their last byte, by request id."""

from __future__ import annotations

import itertools
import uuid
from types import TracebackType

import anyio

from hotswap.http.errors import RequestInvalid, ShuttingDown
from hotswap.seams import Generation

__all__ = ["InFlightRequests", "Ticket"]


class InFlightRequests:
    """Keeps request ids unique and knows what to abort when the server goes down."""

    def __init__(self) -> None:
        self._tickets: dict[str, Ticket] = {}
        self._closing = anyio.Event()
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._tickets)

    def __repr__(self) -> str:
        return f"<InFlightRequests {len(self)}{' closed' if self.closed else ''}>"

    @property
    def closed(self) -> bool:
        """True once the server is going down."""
        return self._closing.is_set()

    async def until_closed(self) -> None:
        """Return once the server is going down."""
        await self._closing.wait()

    def reserve(self, rid: str | None) -> Ticket:
        """Take ``rid`` (a fresh one for None) until the ticket is left.

        Raises: RequestInvalid for an id in use, ShuttingDown.
        """
        if self.closed:
            raise ShuttingDown("the server is shutting down; send the request to another one")
        rid = uuid.uuid4().hex if rid is None else rid
        if not rid:
            raise RequestInvalid("rid is empty, wanted a unique id or none")
        if rid in self._tickets:
            raise RequestInvalid(
                f"duplicate request id {rid!r}: a request with it is in flight; "
                "wait for it, or send another id"
            )
        ticket = self._tickets[rid] = Ticket(self, rid, number=next(self._numbers))
        return ticket

    def release(self, rid: str) -> None:
        """Forget ``rid``."""
        self._tickets.pop(rid, None)

    def close(self) -> int:
        """Abort everything and take nothing more; how many were aborted."""
        self._closing.set()
        tickets = list(self._tickets.values())
        for ticket in tickets:
            ticket.abort()
        return len(tickets)


class Ticket:
    """One request in flight. Leaving it early aborts its generation.

    ``rid`` is free again once the ticket is left. The engine lets go of an aborted
    request later, between two forward passes: it knows the request as ``engine_rid``,
    which no other request ever has.
    """

    def __init__(self, owner: InFlightRequests, rid: str, *, number: int) -> None:
        self._owner = owner
        self.rid = rid
        self.engine_rid = f"{rid}#{number}"
        self.generation: Generation | None = None
        self.ended = False

    def __repr__(self) -> str:
        return f"<Ticket {self.rid} {'ended' if self.ended else 'running'}>"

    def abort(self) -> None:
        """Ask the engine to end the generation, when there is one that runs."""
        if self.generation is not None and not self.ended:
            self.generation.abort()

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
