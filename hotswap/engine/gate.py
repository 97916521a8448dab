"""Whether forward passes may run, and the pauses that wait for them to stop.

Rules:

* ``open``: anything runs. ``draining``: what runs goes on, nothing new starts.
  ``closed``: nothing runs.
* A pause that is taken back leaves the gate as that pause found it, unless
  another pause has used it since.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from enum import StrEnum

from hotswap.errors import Overtaken
from hotswap.seams import EnginePause
from hotswap.types import PauseMode, member

__all__ = ["Gate", "GateState", "PauseTicket"]


class GateState(StrEnum):
    """See the rules above."""

    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"


class PauseTicket:
    """One call of ``pause``: the mode, and the answer once nothing runs."""

    def __init__(self, mode: PauseMode) -> None:
        self.mode: PauseMode = member(PauseMode, mode, what="pause mode")
        self.answer: Future[EnginePause] = Future()

    def __repr__(self) -> str:
        return f"<PauseTicket {self.mode} {'done' if self.answer.done() else 'pending'}>"


class Gate:
    """Engine thread only, ``state`` excepted."""

    def __init__(self) -> None:
        self.state: GateState = GateState.OPEN
        self._draining: list[PauseTicket] = []
        self._closed_by: PauseTicket | None = None

    def __repr__(self) -> str:
        return f"<Gate {self.state}>"

    def drain(self, ticket: PauseTicket) -> None:
        """Close once :meth:`drained` is called; at once when closed already."""
        if self.state is GateState.CLOSED:
            ticket.answer.set_result(EnginePause(num_aborted=0, since=time.perf_counter()))
            return
        self.state = GateState.DRAINING
        self._draining.append(ticket)

    def close(self, ticket: PauseTicket, *, num_aborted: int, since: float) -> None:
        """Close now; a drain on its way is over, as nothing runs any more."""
        was_open = self.state is GateState.OPEN
        self.drained(since=since)
        self._closed_by = ticket if was_open else None
        self.state = GateState.CLOSED
        ticket.answer.set_result(EnginePause(num_aborted=num_aborted, since=since))

    def drained(self, *, since: float) -> None:
        """Nothing runs any more: answer those who wait for it, if any, and close."""
        if self.state is not GateState.DRAINING:
            return
        tickets, self._draining = self._draining, []
        self.state = GateState.CLOSED
        self._closed_by = tickets[0] if len(tickets) == 1 else None
        for ticket in tickets:
            ticket.answer.set_result(EnginePause(num_aborted=0, since=since))

    def open(self) -> None:
        """Let everything run. Those who drain get Overtaken."""
        self.state = GateState.OPEN
        self._closed_by = None
        tickets, self._draining = self._draining, []
        for ticket in tickets:
            ticket.answer.set_exception(
                Overtaken(
                    f"pause({ticket.mode}) was still draining and was overtaken by a resume; "
                    "pause again if generation shall stop"
                )
            )

    def take_back(self, ticket: PauseTicket) -> None:
        """Undo the pause of a caller who left before it got the answer."""
        if ticket in self._draining:
            self._draining.remove(ticket)
            if not self._draining:
                self.state = GateState.OPEN
        elif self._closed_by is ticket:
            self._closed_by = None
            self.state = GateState.OPEN

    def fail(self, error: BaseException) -> None:
        """The engine is gone: so is everybody's answer."""
        tickets, self._draining = self._draining, []
        for ticket in tickets:
            ticket.answer.set_exception(error)
