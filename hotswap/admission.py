"""Which generation requests may enter the engine, and which wait or turn back.

Rule: between the return of :meth:`Admission.enter` and the caller's
``engine.submit`` there is no ``await``. Both run on the event loop's one thread,
so a pause that comes later finds the request in ``engine.in_flight``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum

import anyio

from hotswap.errors import HotswapError, Paused, ShuttingDown, WeightsNotWhole
from hotswap.state import Activity, Change, Machine, State, state_of

__all__ = ["Admission", "WhilePaused"]

_PAUSED = "generation is paused for a weight update; retry shortly"
_NOT_WHOLE = "the weights are not whole, so nothing is generated; send a full update first"
_SLEEPING = "the server sleeps, so nothing is generated; wake it first"
_SHUT = "the server is shutting down; send the request elsewhere"

_QUIET_S = 60.0
"""Without a command for so long, a pause may have been left behind."""


class WhilePaused(StrEnum):
    """What a request meets at a closed gate: an error at once, or a bounded wait."""

    REJECT = "reject"
    HOLD = "hold"


class Admission:
    """The door that generation requests go through."""

    def __init__(
        self,
        machine: Machine,
        *,
        while_paused: WhilePaused = WhilePaused.REJECT,
        hold_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``hold_s`` bounds every wait; a swap's short one under either policy."""
        self._machine = machine
        self._policy = while_paused
        self._hold_s = hold_s
        self._closing = 0
        self._held = 0
        self._shut = False
        self._clock = clock
        self._quiet_since = clock()
        self._news = anyio.Event()
        machine.observe(self._on_change)

    def __repr__(self) -> str:
        return f"<Admission {self._policy} open={self.open} held={self._held}>"

    @property
    def open(self) -> bool:
        """Whether a request would enter now, without waiting."""
        return not self._closing and not self._shut and self._machine.state is State.SERVING

    @property
    def closing(self) -> bool:
        """Whether a pause has closed the door and has not finished yet."""
        return self._closing > 0

    @property
    def held(self) -> int:
        """How many requests wait at the door."""
        return self._held

    async def enter(self) -> None:
        """Return when a request may be submitted; submit before the next ``await``.

        Raises: Paused (the gate is closed, and stayed so for ``hold_s`` if the
        policy is to hold), WeightsNotWhole (torn, never loaded, or asleep), ShuttingDown.
        """
        deadline = anyio.current_time() + self._hold_s
        while not self.open:
            refusal = self._refusal()
            if refusal is not None or anyio.current_time() >= deadline:
                raise refusal or self._paused()
            self._held += 1
            try:
                with anyio.move_on_at(deadline):
                    await self._news.wait()
            finally:
                self._held -= 1

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Keep the door closed: a pause has been asked for and is not done yet."""
        self._closing += 1
        try:
            yield
        finally:
            self._closing -= 1
            self._tell()

    def shut(self) -> None:
        """Turn everybody back from now on, those who wait included."""
        self._shut = True
        self._tell()

    def _refusal(self) -> HotswapError | None:
        """Why a request turns back at once; None when it may wait."""
        if self._shut:
            return ShuttingDown(_SHUT)
        # What the state will be when a running command leaves everything as it was.
        state = state_of(replace(self._machine.facts, busy=Activity.NOTHING))
        if state is State.INVALID:
            return WeightsNotWhole(_NOT_WHOLE)
        if state is State.SLEEPING:
            return WeightsNotWhole(_SLEEPING)
        if self._policy is WhilePaused.REJECT and (self._closing or state is State.PAUSED):
            return self._paused()
        return None

    def _paused(self) -> Paused:
        """Whoever closed the gate long ago may be gone: then waiting alone does not help."""
        quiet_s = self._clock() - self._quiet_since
        if self._closing or self._machine.state is not State.PAUSED or quiet_s < _QUIET_S:
            return Paused(_PAUSED)
        return Paused(
            f"{_PAUSED} (it is paused and no command has come for {quiet_s:.0f} s: "
            "POST /continue_generation ends a pause that was left behind)"
        )

    def _on_change(self, change: Change) -> None:
        self._quiet_since = self._clock()
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()
