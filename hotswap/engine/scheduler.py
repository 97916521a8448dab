"""Which requests run in the next forward pass, and what becomes of their tokens.

Rules:

* Everything here happens on the engine's thread, between two forward passes.
* First come, first served; a retracted request goes back to where it came from.
* Every request between two tokens of output is in every pass. Prompts are computed in
  the same passes, a bounded number of tokens at a time; see ``shares``.
* Memory that runs out is taken from the request that started last; see ``kv_room``.
* A token is stamped with the weights that were live during its forward pass.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from hotswap.engine.batch import make_batch
from hotswap.engine.gate import Gate, GateState, PauseTicket
from hotswap.engine.generation import Outbox
from hotswap.engine.in_flight import InFlightLedger
from hotswap.engine.kv import KvShape
from hotswap.engine.kv_room import KvRoom
from hotswap.engine.logprobs import score_chosen
from hotswap.engine.model import CausalLm
from hotswap.engine.request import Request
from hotswap.engine.reuse import Reuse
from hotswap.engine.sampling import choose_tokens
from hotswap.engine.shares import share
from hotswap.engine.stopping import Finish
from hotswap.engine.tally import Tally
from hotswap.engine.turns import Turn
from hotswap.seams import TokenChunk, TokenLogprob
from hotswap.types import PauseMode, WeightStamp

__all__ = ["Scheduler"]

_log = logging.getLogger(__name__)


class Scheduler:
    """Continuous batching of requests over one model. Engine thread only."""

    def __init__(
        self,
        model: CausalLm,
        *,
        kv_shape: KvShape,
        reuse: Reuse,
        room: KvRoom,
        ledger: InFlightLedger,
        stamp: WeightStamp,
        max_running: int,
        max_prefill_tokens: int,
    ) -> None:
        """``max_prefill_tokens`` bounds a pass, over all its prompts together."""
        self._model = model
        self._kv_shape = kv_shape
        self._reuse = reuse
        self._room = room
        self._ledger = ledger
        self._max_running = max_running
        self._max_prefill_tokens = max_prefill_tokens
        self._running: list[Request] = []
        self._waiting: deque[Request] = deque()
        # Their consumers are behind: they wait for those, without keys and values.
        self._stalled: set[Request] = set()
        # Set when memory ran out: nothing starts until a running request has ended.
        self._is_crowded = False
        self._last_pass_end = time.perf_counter()
        self.stamp: WeightStamp = stamp
        self.gate: Gate = Gate()
        self.outbox: Outbox = Outbox()
        self.tally: Tally = Tally()

    def __repr__(self) -> str:
        return f"<Scheduler {len(self._running)} running {len(self._waiting)} waiting {self.gate}>"

    @property
    def has_work(self) -> bool:
        """Whether a step would run a forward pass."""
        if self.gate.state is GateState.CLOSED:
            return False
        return bool(self._running) or self._may_start

    # --- requests

    def add(self, request: Request) -> None:
        """Queue a request, which the ledger counts already."""
        self._waiting.append(request)

    def abort(self, request: Request) -> None:
        """End a request with what it has; a no-op once it is over."""
        if request.is_over:
            return
        # Who aborts a text often sends it again, with what it has got so far.
        with self._on_its_own(request, "keeping what it has computed"):
            self._reuse.remember(request)
        if not request.is_over:
            self._end(request, reason="abort")
        self._settle()

    def end_all(self, reason: str) -> int:
        """End every request with what it has; how many."""
        requests = [*self._running, *self._waiting, *self._stalled]
        for request in requests:
            self._end(request, reason=reason)
        return len(requests)

    def go_on(self, request: Request) -> None:
        """The consumer of a request has caught up; a no-op unless the request stood still."""
        if request in self._stalled:
            self._stalled.remove(request)
            owed = sum(waiting.is_owed for waiting in self._waiting)
            self._waiting.insert(owed, request)

    @property
    def num_stalled(self) -> int:
        """Requests that wait for their consumers. Any thread."""
        return len(self._stalled)

    # --- commands

    def pause(self, ticket: PauseTicket) -> None:
        """Stop as the ticket's mode says; see ``seams.Engine.pause``."""
        # From here on a caller who leaves takes the pause back; it cannot just vanish.
        ticket.answer.set_running_or_notify_cancel()
        if ticket.mode is PauseMode.WAIT:
            self.gate.drain(ticket)
            self._settle(idle=True)
            return
        since = self._last_pass_end if self._is_busy else time.perf_counter()
        aborted = self.end_all("abort") if ticket.mode is PauseMode.ABORT else 0
        if ticket.mode is PauseMode.RETRACT:
            self._retract_all()
        self.gate.close(ticket, num_aborted=aborted, since=since)

    @property
    def _is_busy(self) -> bool:
        """Whether forward passes were running just now."""
        return bool(self._running) and self.gate.state is not GateState.CLOSED

    def resume(self) -> None:
        """Let forward passes run."""
        self.gate.open()

    def flush(self) -> int:
        """Empty the prefix cache; what runs now will not enter it either."""
        return self._reuse.flush()

    def commit(self, stamp: WeightStamp) -> None:
        """From here on the weights are those of ``stamp``."""
        self.stamp = stamp
        self._reuse.commit(stamp.epoch)

    def count_room(self) -> None:
        """Bring up to date what other threads see of the memory in use."""
        self._room.count(self._running, cached=self._reuse.size_tokens)

    # --- one step

    def step(self) -> None:
        """One forward pass for everything that runs, new requests among it.

        What goes wrong with one request ends that one with ``error``; what goes wrong
        with the pass itself ends all that are in it. The next go on.
        """
        turns: list[Turn] = []
        try:
            with torch.inference_mode():
                self._admit()
                self._make_room()
                turns = self._turns()
                self._forward(turns)
        except Exception:
            lost = [turn.request for turn in turns] or list(self._running)
            _log.exception("a forward pass failed; its %d requests end", len(lost))
            for request in lost:
                if not request.is_over:
                    self._end(request, reason="error")
        self._settle()

    @contextmanager
    def _on_its_own(self, request: Request, doing: str) -> Iterator[None]:
        """What fails inside ends this request with ``error``, and no other."""
        try:
            yield
        except Exception:
            _log.exception("request %s ends: %s failed", request.rid, doing)
            if not request.is_over:
                self._end(request, reason="error")

    @property
    def _may_start(self) -> bool:
        """Whether the gate lets the first that waits run."""
        if not self._waiting:
            return False
        # What a drain found running has to end, also if it had to make room meanwhile.
        is_owed = self._waiting[0].is_owed and self.gate.state is GateState.DRAINING
        return is_owed or self.gate.state is GateState.OPEN

    def _admit(self) -> None:
        while (
            self._may_start
            and len(self._running) < self._max_running
            and not (self._is_crowded and self._running)
            and self._room.has_room(self._running, self._waiting[0])
        ):
            request = self._waiting[0]
            with self._on_its_own(request, "its start"):
                self._start(request)

    def _start(self, request: Request) -> None:
        """Give the first that waits KV, as much as is known already."""
        request.start(self._reuse.begin(self._kv_shape))
        self._running.append(self._waiting.popleft())
        self._ledger.start()
        request.reserve()
        self._reuse.extend(request, self._running)

    def _make_room(self) -> None:
        """Have those that started last give way until all that run have room."""
        while self._room.free(self._running) < 0 and len(self._running) > 1:
            request = self._running[-1]
            _log.info("request %s gives way: its keys and values have no room", request.rid)
            self._park(request)
            request.is_owed = self._is_crowded = True
        self._reuse.shrink_to(self._room.free(self._running))

    def _turns(self) -> list[Turn]:
        """Who takes part in the next pass, and with how many tokens."""
        for request in list(self._running):
            with self._on_its_own(request, "room for its keys and values"):
                request.reserve()
        shares = self._shares()
        counts = [(request, shares.get(request, 1)) for request in self._running]
        return [Turn.of(request, count) for request, count in counts if count]

    def _shares(self) -> dict[Request, int]:
        """How many tokens of each prompt are computed in the next pass."""
        extended: set[Request] = set()
        while True:
            prompts = [request for request in self._running if request.left > 1]
            lefts = [request.left for request in prompts]
            counts = share(lefts, budget=self._max_prefill_tokens)
            fresh = {request for request, count in zip(prompts, counts, strict=True) if count}
            fresh -= extended
            if not fresh:
                return dict(zip(prompts, counts, strict=True))
            # What others have computed meanwhile need not be computed again.
            extended |= fresh
            for request in fresh:
                with self._on_its_own(request, "reuse of what is known"):
                    self._reuse.extend(request, self._running)

    def _forward(self, turns: Sequence[Turn]) -> None:
        if not turns:
            return
        works = [turn.request.work(turn.count) for turn in turns]
        batch = make_batch(works, self._kv_shape.device)
        segments = zip(turns, batch.segments, strict=True)
        scored = [rows for turn, segment in segments if (rows := turn.request.scored(segment))]
        logits = self._model(batch, scored=scored)
        self._count(turns)
        ending = [row for row, turn in enumerate(turns) if turn.is_last]
        if len(ending) < len(turns):
            logits = logits[ending]
        self._choose([turns[row].request for row in ending], logits)

    def _count(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            if not turn.is_decode:
                self.tally.prefill_tokens += turn.count
            request, holding = turn.request, turn.request.holding
            if turn.is_last and holding is not None and not holding.is_through:
                holding.is_through = True
                self.tally.count_start(holding.cached)
                self._reuse.count(request)

    def _choose(self, requests: Sequence[Request], logits: torch.Tensor) -> None:
        """Give each request its next token, from ``[requests x vocabulary]``."""
        samplers = [request.sampler for request in requests]
        tokens = choose_tokens(samplers, logits)
        scores = score_chosen(
            logits,
            tokens,
            [request.logprobs for request in requests],
            temperatures=[sampler.temperature for sampler in samplers],
        )
        self._last_pass_end = time.perf_counter()
        for request, token, score in zip(requests, tokens, scores, strict=True):
            with self._on_its_own(request, "its next token"):
                self._accept(request, token, score)

    def _accept(
        self, request: Request, token: int | Exception | None, score: TokenLogprob | None
    ) -> None:
        if isinstance(token, Exception):
            raise token
        if token is None:
            seen = (
                f"its logits are not finite under weight epoch {self.stamp.epoch} (version "
                f"{self.stamp.version}); look for NaN in that checkpoint and send another"
            )
            # Whoever reads the request tells of it, under the name that its client knows.
            self._end(request, reason="error", error=seen)
            return
        if request.stop_rule.wants_none:
            finish: Finish | None = Finish(reason="length")
            has_room = self._send(request, None, finish)
        else:
            request.tokens.append(token)
            self.tally.generated_tokens += 1
            finish = request.stop_rule.push(token)
            has_room = self._send(request, token, finish, score=score)
        if finish is not None:
            self._reuse.remember(request)
            self._drop(request)
        elif not has_room and request.generation.stall():
            self._stall(request)

    def _stall(self, request: Request) -> None:
        """Set a request aside; what it has computed may be in the prefix cache when it goes on."""
        self._reuse.remember(request)
        self._suspend(request)
        self._stalled.add(request)

    # --- ends

    def _retract_all(self) -> None:
        while self._running:
            self._park(self._running[-1])

    def _park(self, request: Request) -> None:
        """Put a request that ran back to the front of those that wait."""
        self._suspend(request)
        self._waiting.appendleft(request)

    def _suspend(self, request: Request) -> None:
        request.stop()
        self._running.remove(request)
        self._is_crowded = False
        self.tally.retractions += 1
        self._ledger.park()

    def _end(self, request: Request, *, reason: str, error: str | None = None) -> None:
        self._send(request, None, Finish(reason=reason), error=error)
        self._drop(request)

    def _drop(self, request: Request) -> None:
        was_running = request.is_running
        if was_running:
            self._running.remove(request)
            self._is_crowded = False
        elif request in self._stalled:
            self._stalled.remove(request)
        else:
            self._waiting.remove(request)
        request.holding = None
        request.is_over = True
        self._ledger.leave(request.rid, was_running=was_running)

    def _settle(self, *, idle: bool = False) -> None:
        """Close a draining gate once nothing runs."""
        if not self._running and not self._may_start:
            self.gate.drained(since=time.perf_counter() if idle else self._last_pass_end)

    def _send(
        self,
        request: Request,
        token: int | None,
        finish: Finish | None,
        *,
        score: TokenLogprob | None = None,
        error: str | None = None,
    ) -> bool:
        """Put a chunk out; whether the consumer is near enough for another."""
        chunk = TokenChunk(
            token_id=token,
            stamp=self.stamp,
            finish_reason=None if finish is None else finish.reason,
            matched_stop=None if finish is None else finish.matched,
            cached_tokens=request.cached_tokens,
            num_retractions=request.num_retractions,
            logprob=score,
            input_logprobs=() if request.input_scores is None else request.input_scores.deliver(),
            error=error,
        )
        self.outbox.put(request.generation, chunk)
        return request.generation.sent()
