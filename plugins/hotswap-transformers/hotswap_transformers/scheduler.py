"""Which requests transformers has, and what becomes of the tokens that are chosen.

Rules:

* Everything here happens on the engine's thread, between two forward passes.
* First come, first served; a retracted request goes back to where it came from.
* Those that wait, wait here: what transformers has counts as running, and as holding
  keys and values.
* A token is stamped with the weights that were live during its forward pass.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence

import torch

from hotswap.engine.gate import Gate, GateState, PauseTicket
from hotswap.engine.generation import Outbox
from hotswap.engine.in_flight import InFlightLedger
from hotswap.engine.logprobs import score_chosen
from hotswap.engine.sampling import choose_tokens
from hotswap.engine.stopping import Finish
from hotswap.engine.tally import Tally
from hotswap.seams import TokenChunk, TokenLogprob
from hotswap.types import PauseMode, WeightStamp
from hotswap_transformers.batching import Batching, Match
from hotswap_transformers.request import Request

__all__ = ["BatchScheduler"]

_log = logging.getLogger(__name__)


class BatchScheduler:
    """Feeds requests to :class:`Batching`, and takes them out again. Engine thread only."""

    def __init__(self, *, ledger: InFlightLedger, stamp: WeightStamp, max_running: int) -> None:
        self._ledger = ledger
        self._max_running = max_running
        self._batching: Batching | None = None
        self._running: dict[str, Request] = {}
        self._waiting: deque[Request] = deque()
        # Their consumers are behind: they wait for those, without keys and values.
        self._stalled: set[Request] = set()
        self._chosen: list[tuple[Request, int | Exception | None, TokenLogprob | None]] = []
        self._last_pass_end = time.perf_counter()
        self.stamp = stamp
        self.gate = Gate()
        self.outbox = Outbox()
        self.tally = Tally()

    def __repr__(self) -> str:
        running, waiting = len(self._running), len(self._waiting)
        return f"<BatchScheduler {running} running {waiting} waiting {self.gate}>"

    @property
    def batching(self) -> Batching:
        """What runs the model."""
        assert self._batching is not None, "run_on comes first"
        return self._batching

    def run_on(self, batching: Batching) -> None:
        """Set what runs the model; it calls :meth:`choose` and :meth:`matched`."""
        self._batching = batching

    @property
    def has_work(self) -> bool:
        """Whether a step would run a forward pass."""
        if self.gate.state is GateState.CLOSED:
            return False
        return bool(self._running) or self._may_start

    @property
    def _may_start(self) -> bool:
        return bool(self._waiting) and self.gate.state is GateState.OPEN

    @property
    def num_stalled(self) -> int:
        """Requests that wait for their consumers. Any thread."""
        return len(self._stalled)

    # --- requests

    def add(self, request: Request) -> None:
        """Queue a request, which the ledger counts already."""
        self._waiting.append(request)

    def abort(self, request: Request) -> None:
        """End a request with what it has; a no-op once it is over."""
        if not request.is_over:
            self._end(request, reason="abort")
            self._settle()

    def go_on(self, request: Request) -> None:
        """The consumer of a request has caught up; a no-op unless the request stood still."""
        if request in self._stalled:
            self._stalled.remove(request)
            self._waiting.appendleft(request)

    def end_all(self, reason: str) -> int:
        """End every request with what it has; how many."""
        requests = [*self._running.values(), *self._waiting, *self._stalled]
        for request in requests:
            self._end(request, reason=reason)
        return len(requests)

    # --- commands

    def pause(self, ticket: PauseTicket) -> None:
        """Stop as the ticket's mode says; see ``seams.Engine.pause``."""
        # From here on a caller who leaves takes the pause back; it cannot just vanish.
        ticket.answer.set_running_or_notify_cancel()
        if ticket.mode is PauseMode.WAIT:
            self.gate.drain(ticket)
            self._settle(idle=True)
            return
        is_busy = bool(self._running) and self.gate.state is not GateState.CLOSED
        since = self._last_pass_end if is_busy else time.perf_counter()
        aborted = self.end_all("abort") if ticket.mode is PauseMode.ABORT else 0
        if ticket.mode is PauseMode.RETRACT:
            for request in reversed(list(self._running.values())):
                self._suspend(request)
                self._waiting.appendleft(request)
        self.gate.close(ticket, num_aborted=aborted, since=since)

    def resume(self) -> None:
        """Let forward passes run."""
        self.gate.open()

    def flush(self) -> int:
        """No text begins with what was computed before, that of running requests included."""
        return self.batching.forget()

    def commit(self, stamp: WeightStamp) -> None:
        """From here on the weights are those of ``stamp``."""
        if stamp.epoch != self.stamp.epoch:
            self.batching.forget()
        self.stamp = stamp

    # --- one step

    def step(self) -> None:
        """One forward pass for everything that runs, new requests among it.

        What goes wrong with the pass itself ends all requests that run with ``error``.
        """
        while self._may_start and len(self._running) < self._max_running:
            self._start(self._waiting.popleft())
        try:
            with torch.inference_mode():
                self.batching.step()
        except Exception:
            _log.exception("a forward pass failed; its %d requests end", len(self._running))
            self._chosen.clear()
            lost = list(self._running.values())
            self.batching.clear()
            for request in lost:
                self._end(request, reason="error")
        self._last_pass_end = time.perf_counter()
        chosen, self._chosen = self._chosen, []
        for request, token, score in chosen:
            self._accept(request, token, score)
        self._settle()

    def choose(self, rids: Sequence[str], logits: torch.Tensor) -> list[int]:
        """Called in a step: a token for each row of ``[requests x vocabulary]`` float32."""
        requests = [self._running[rid] for rid in rids]
        samplers = [request.sampler for request in requests]
        tokens = choose_tokens(samplers, logits)
        scores = score_chosen(
            logits,
            tokens,
            [request.logprobs for request in requests],
            temperatures=[sampler.temperature for sampler in samplers],
        )
        self._chosen = list(zip(requests, tokens, scores, strict=True))
        return [token if isinstance(token, int) else 0 for token in tokens]

    def matched(self, match: Match) -> None:
        """Called in a step: how much of a request that starts was in the cache."""
        self._running[match.rid].cached_tokens = match.tokens

    def _start(self, request: Request) -> None:
        request.is_running = True
        request.is_fresh = True
        self._running[request.rid] = request
        self._ledger.start()
        self.batching.add(request.rid, request.tokens)

    def _accept(
        self, request: Request, token: int | Exception | None, score: TokenLogprob | None
    ) -> None:
        if request.is_fresh:
            request.is_fresh = False
            self.tally.count_start(request.cached_tokens)
            self.tally.prefill_tokens += len(request.tokens) - request.cached_tokens
        if not isinstance(token, int):
            reason = token or f"its logits are not finite under weight epoch {self.stamp.epoch}"
            _log.error("request %s ends: %s", request.rid, reason)
            self._end(request, reason="error")
            return
        if request.stop_rule.wants_none:
            self._send(request, None, Finish(reason="length"))
            self._drop(request)
            return
        request.tokens.append(token)
        self.tally.generated_tokens += 1
        finish = request.stop_rule.push(token)
        has_room = self._send(request, token, finish, score=score)
        if finish is not None:
            self._drop(request)
        elif not has_room and request.generation.stall():
            self._suspend(request)
            self._stalled.add(request)

    # --- ends

    def _suspend(self, request: Request) -> None:
        """Take a request that runs out of transformers; it will start again."""
        self.batching.drop(request.rid)
        del self._running[request.rid]
        request.is_running = False
        request.num_retractions += 1
        self.tally.retractions += 1
        self._ledger.park()

    def _end(self, request: Request, *, reason: str) -> None:
        self._send(request, None, Finish(reason=reason))
        self._drop(request)

    def _drop(self, request: Request) -> None:
        if request.is_running:
            self.batching.drop(request.rid)
            del self._running[request.rid]
        elif request in self._stalled:
            self._stalled.remove(request)
        else:
            self._waiting.remove(request)
        self._ledger.leave(request.rid, was_running=request.is_running)
        request.is_running = False
        request.is_over = True

    def _settle(self, *, idle: bool = False) -> None:
        """Close a draining gate once nothing runs."""
        if not self._running:
            self.gate.drained(since=time.perf_counter() if idle else self._last_pass_end)

    def _send(
        self,
        request: Request,
        token: int | None,
        finish: Finish | None,
        *,
        score: TokenLogprob | None = None,
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
        )
        self.outbox.put(request.generation, chunk)
        return request.generation.sent()
