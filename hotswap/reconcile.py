"""Bring the engine to what the facts say: the last step of every command."""

from __future__ import annotations

import logging

from hotswap.foreign import contained
from hotswap.seams import Engine
from hotswap.state import Command, Machine, Outcome, Situation, forward_allowed
from hotswap.types import PauseMode

__all__ = ["reconcile"]

_log = logging.getLogger("hotswap.state")


async def reconcile(engine: Engine, machine: Machine) -> None:
    """Let forward passes run if the facts allow them; else leave the engine paused.

    Only the holder of the queue's entry calls this. An engine that does not
    resume stands still whatever the facts say, so the gate is closed to make them
    true: readiness then says "paused", and the client's resume tries again.
    """
    if not forward_allowed(machine.facts):
        return
    try:
        with contained("the engine"):
            await engine.resume()
    except Exception:
        _log.exception("the engine did not resume; the gate is closed until a resume succeeds")
        parked = Situation(mode=PauseMode.RETRACT)
        machine.begin(Command.PAUSE, parked)
        machine.finish(Outcome.DONE, parked)
