"""The controller: commands come in, one at a time, and the machine decides.

Rules:

* A command holds the queue's entry while it runs, calls ``machine.begin`` once and
  ``machine.finish`` once, and leaves the engine as the facts say.
* Reads (``machine``, ``stamp``, ``counters``, ``not_ready_reasons``) never wait.
* Everything runs on the event loop's one thread; only staging uses others.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

import anyio

from hotswap.admission import Admission, WhilePaused
from hotswap.attempt import Attempt, Phase, UpdateNews
from hotswap.change_lines import fields_of, line_of
from hotswap.command_queue import CommandQueue, Entry
from hotswap.counters import Counters, outcome_of
from hotswap.coverage import Coverage
from hotswap.drain import Drain, PauseReport
from hotswap.errors import IllegalCommand, ShuttingDown
from hotswap.fetch import PreRead
from hotswap.foreign import contained, reason_of
from hotswap.occupation import Occupation
from hotswap.reconcile import reconcile
from hotswap.redacted import hide_in_error
from hotswap.seams import Engine, LoadStrategy, Resettable
from hotswap.state import (
    Activity,
    Change,
    Command,
    Facts,
    Machine,
    Outcome,
    Situation,
    State,
    Weights,
    forward_allowed,
)
from hotswap.stopped import StoppedWork
from hotswap.types import PauseMode, Placement, Update, UpdateReport, WeightStamp, member
from hotswap.uninterrupted import uninterrupted
from hotswap.update_observers import UpdateObservers
from hotswap.update_pipeline import UpdatePipeline
from hotswap.update_sessions import UpdateSessions
from hotswap.write_window import WriteWindow

__all__ = ["Controller", "PauseReport"]

_log = logging.getLogger("hotswap.state")
_update_log = logging.getLogger("hotswap.update")


class Controller:
    """Pauses, resumes, flushes and updates one engine.

    Use it as an async context manager, or call ``start`` and ``close``.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        strategies: Mapping[str, LoadStrategy],
        placement: Placement | None = None,
        pre_read: Sequence[PreRead] = (),
        changed: Sequence[Callable[[Change], None]] = (),
        stamp: WeightStamp | None = None,
        facts: Facts | None = None,
        queue_wait_s: float = 30.0,
        while_paused: str = WhilePaused.REJECT,
        hold_s: float = 60.0,
        session_timeout_s: float = 600.0,
    ) -> None:
        """``stamp`` and ``facts`` say what the engine booted with. ``queue_wait_s``
        bounds the wait for other commands and for writes, ``hold_s`` that of requests;
        a session that nothing comes for in ``session_timeout_s`` is over."""
        self._engine = engine
        self._changed_hooks = tuple(changed)
        self.queue: CommandQueue = CommandQueue(wait_s=queue_wait_s)
        self._drain: Drain | None = None
        self._observers = UpdateObservers()
        self._update_numbers = itertools.count(1)
        self._updates: dict[anyio.CancelScope, tuple[Attempt, anyio.Event]] = {}
        self._started = False
        self._closing = False
        self.machine: Machine = Machine(facts)
        self.counters: Counters = Counters()
        self.admission: Admission = Admission(
            self.machine, while_paused=WhilePaused(while_paused), hold_s=hold_s
        )
        self.machine.observe(self._on_change)
        self.writes: WriteWindow = WriteWindow(wait_s=queue_wait_s)
        self._stopped = StoppedWork(
            engine,
            machine=self.machine,
            queue=self.queue,
            counters=self.counters,
            window=self.writes,
        )
        self._pipeline = UpdatePipeline(
            engine=engine,
            machine=self.machine,
            queue=self.queue,
            strategies=strategies,
            placement=placement or Placement(),
            pre_read=pre_read,
            stamp=stamp or WeightStamp(),
            window=self.writes,
        )
        self.coverage: Coverage = self._pipeline.coverage
        sessions = partial(UpdateSessions, engine, commit=self.update, busy=self._what_runs)
        self.sessions: UpdateSessions = sessions(timeout_s=session_timeout_s, wait_s=queue_wait_s)
        self.memory: Occupation = Occupation(self._stopped, refuse=self.sessions.refuse_others)

    def __repr__(self) -> str:
        return f"<Controller {self.machine.state} {self.stamp}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def stamp(self) -> WeightStamp:
        """Which weights are live."""
        return self._pipeline.stamp

    @property
    def last_update(self) -> UpdateReport | None:
        """What the newest successful update did and cost."""
        return self._pipeline.last_report

    @property
    def updates(self) -> list[dict[str, object]]:
        """Updates that are not over: source, version, phase, age in milliseconds."""
        return [attempt.progress() for attempt, _ in self._updates.values()]

    def observe_updates(self, observer: Callable[[UpdateNews], None]) -> None:
        """Call ``observer`` at every step of every update, on the event loop.

        What it raises is logged and changes nothing. State changes have
        ``machine.observe``.
        """
        self._observers.add(observer)

    def not_ready_reasons(self) -> list[str]:
        """Why a generation request would not run now; empty when it would."""
        facts = self.machine.facts
        reasons = {
            "starting": not self._started,
            "shutting_down": self._closing,
            "paused": self.admission.closing or not forward_allowed(facts),
            "sleeping": self.machine.state is State.SLEEPING,
            "weights_not_whole": facts.weights is not Weights.WHOLE,
        }
        return [reason for reason, holds in reasons.items() if holds]

    async def start(self) -> None:
        """Bring the engine to what the facts say: no forward pass without weights."""
        if not forward_allowed(self.machine.facts):
            await self._engine.pause(PauseMode.IN_PLACE)
        self._started = True

    async def close(self) -> None:
        """Shut down in order: a commit that runs is finished, everything else dropped.

        Commands that come later, or still wait, get ShuttingDown. Idempotent.
        """
        self._closing = True
        self.admission.shut()
        for scope in self._updates:
            scope.cancel()
        if self._drain is not None:
            self._drain.drop()
        await self.queue.close()
        for _, ended in tuple(self._updates.values()):
            await ended.wait()
        self.sessions.close()

    async def pause(self, mode: PauseMode) -> PauseReport:
        """Stop forward passes, and requests in flight as ``mode`` says.

        Admission closes at once. Pausing again succeeds and applies the stronger mode; a
        stronger pause takes over one that still drains, and ends the drain of a swap that waits
        for requests before the swap goes on. Cancelled or failed: gate and engine are as before.

        Raises: ValueError, Busy, Overtaken (by a resume), what the engine raised.
        """
        mode = member(PauseMode, mode, what="pause mode")
        with self.counters.counted(Command.PAUSE):
            hurried = await self._pipeline.hurry(mode)
            drain = self._drain
            if drain is not None and mode.strength > drain.mode.strength:
                drain.strengthen(mode)
            else:
                with self.admission.closed():
                    drain = self._begin_drain(mode, await self.queue.enter(Command.PAUSE))
            await drain.join()
            return PauseReport(mode=drain.mode, num_aborted=drain.num_aborted + hurried)

    async def resume(self) -> None:
        """Open the gate and let forward passes run. Idempotent.

        Overtakes a pause that is still draining. While the server sleeps the open
        gate is remembered.

        Raises: IllegalCommand (the weights are not whole), Busy, what the engine raised.
        """
        with self.counters.counted(Command.RESUME):
            drain = self._drain
            if drain is not None:
                self.machine.check(Command.RESUME, Situation())
                drain.overtake("a resume")
            # The drain's entry goes to this resume, before any command that waits.
            with await self.queue.enter(Command.RESUME, front=drain is not None):
                await uninterrupted(self._resume())

    async def flush(self) -> int:
        """Drop every cached prefix; how many went. Never waits.

        Raises: Busy (another command runs or waits), InFlight (requests hold KV).
        """
        with self.counters.counted(Command.FLUSH), self.queue.enter_now(Command.FLUSH):
            return await uninterrupted(self._flush())

    async def update(self, update: Update) -> UpdateReport:
        """Replace weights, pausing for the commit alone if nobody paused before.

        Cancelled before the first write it is undone; after it, it runs to its end.

        Raises: IllegalCommand, InFlight, Busy, UpdateRejected (all: weights untouched),
        UpdateRolledBack, UpdateFailed (nothing is generated until a full update).
        """
        attempt = Attempt(
            update=update, number=next(self._update_numbers), tell=self._observers.tell
        )
        try:
            attempt.enter(Phase.WAITING)
            report = await self._update(attempt)
        except BaseException as error:
            hide_in_error(error, update.source)
            outcome = self._count(attempt, outcome_of(error))
            attempt.end(outcome, error)
            reason, told = reason_of(error), attempt.fields(outcome)
            _update_log.warning("%s %s: %s", str(attempt), outcome, reason, extra=told)
            raise
        outcome = self._count(attempt, "committed")
        attempt.end(outcome)
        _update_log.info("%s %s: %s", str(attempt), outcome, report, extra=attempt.fields(outcome))
        return report

    async def relabel(self, version: str, *, abort: bool = False) -> int:
        """Give the live weights another version; how many requests were aborted.

        The weights stay what they are, and so do epoch, count and cached prefixes. Tokens
        from here on carry the new label. ``abort`` ends requests in flight first.

        Raises: IllegalCommand (weights not whole, or asleep), Busy, what the engine raised.
        """

        async def adopt() -> None:
            stamp = replace(self.stamp, version=version)
            # A commit of nothing: the engine stamps its next token with it.
            with contained("the engine"):
                await self._engine.commit(stamp)
            self._pipeline.stamp = stamp

        mode = PauseMode.ABORT if abort else PauseMode.IN_PLACE
        _, aborted = await self._stopped.run(
            Command.RELABEL, adopt, mode=mode, failed=Outcome.UNDONE
        )
        return aborted

    async def reset(self, *, skipped: Sequence[str] = ()) -> tuple[str, ...]:
        """Overwrite the weights with noise, but for names with one of ``skipped`` in them.

        Nothing is generated until a full update. Returns the live names overwritten.

        Raises: IllegalCommand, InFlight, Busy, what the engine raised (weights not whole).
        """
        engine = self._engine
        self.sessions.refuse_others()
        if not isinstance(engine, Resettable):
            raise IllegalCommand("this engine cannot reset its weights; send a full update instead")
        work = partial(engine.reset_weights, skipped)
        names, _ = await self._stopped.run(
            Command.RESET, work, mode=PauseMode.IN_PLACE, failed=Outcome.TORN
        )
        return names

    async def _update(self, attempt: Attempt) -> UpdateReport:
        shutting_down = ShuttingDown(
            "update dropped before its first write: the server is shutting down; send it elsewhere"
        )
        if self._closing:
            raise shutting_down
        self.sessions.refuse_others(attempt.update)
        with anyio.CancelScope() as scope:
            ended = anyio.Event()
            self._updates[scope] = (attempt, ended)
            try:
                return await self._pipeline.run(attempt)
            finally:
                del self._updates[scope]
                ended.set()
        raise shutting_down

    def _count(self, attempt: Attempt, outcome: str) -> str:
        # A caller that left after the commit changes nothing about the commit.
        word = attempt.outcome or outcome
        self.counters.count_update(attempt.command, attempt.update.strategy, word)
        return word

    def _what_runs(self) -> str | None:
        """What changes the weights now, so that no session may begin."""
        if self._updates:
            return "an update runs"
        busy = self.machine.facts.busy is Activity.UPDATING
        return f"{self.queue.running} runs" if busy else None

    def _begin_drain(self, mode: PauseMode, entry: Entry) -> Drain:
        """Start the pause in a task that holds the entry and keeps admission closed."""
        held = ExitStack()
        held.enter_context(entry)
        held.enter_context(self.admission.closed())
        gate = self.machine.facts.gate
        drain = Drain(mode if gate is None else max(mode, gate, key=lambda m: m.strength))

        async def pause() -> None:
            with held:
                await self._pause(drain)

        self._drain = drain
        drain.start(pause)
        return drain

    async def _pause(self, drain: Drain) -> None:
        # Requests that already stand still can never finish, so "wait" must not wait.
        runs = forward_allowed(self.machine.facts)
        outcome = Outcome.UNDONE
        self.machine.begin(Command.PAUSE, Situation(mode=drain.mode))
        try:
            await drain.stop(self._engine, at_least=PauseMode.WAIT if runs else PauseMode.IN_PLACE)
            outcome = Outcome.DONE
        finally:
            self._drain = None
            self.machine.finish(outcome, Situation(mode=drain.mode))
            await reconcile(self._engine, self.machine)

    async def _resume(self) -> None:
        outcome = Outcome.UNDONE
        self.machine.begin(Command.RESUME, Situation())
        try:
            if forward_allowed(replace(self.machine.facts, gate=None)):
                with contained("the engine"):
                    await self._engine.resume()
            outcome = Outcome.DONE
        finally:
            self.machine.finish(outcome, Situation())

    async def _flush(self) -> int:
        in_flight = self._engine.in_flight
        now = Situation(in_flight=in_flight.total, holding_kv=in_flight.holding_kv)
        outcome = Outcome.UNDONE
        self.machine.begin(Command.FLUSH, now)
        try:
            with contained("the engine"):
                entries = await self._engine.flush()
            outcome = Outcome.DONE
        finally:
            self.machine.finish(outcome, now)
        return entries

    def _on_change(self, change: Change) -> None:
        self.counters.count_state(change)
        if change.before != change.after:
            _log.info("%s", line_of(change), extra=fields_of(change))
        for hook in self._changed_hooks:
            try:
                hook(change)
            except BaseException:  # it awaits nothing, so that this is its own
                _log.exception("a changed hook failed on: %s", line_of(change))
