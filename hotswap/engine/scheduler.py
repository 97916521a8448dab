"""Which requests run in the next forward pass, and what becomes of their tokens.

Rules:

* Everything here happens on the engine's thread, between two forward passes.
* First come, first served; a retracted request goes back to where it came from.
* A token is stamped with the weights that were live during its forward pass.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hotswap.engine.batch import make_batch
from hotswap.engine.gate import Gate, GateState, PauseTicket
from hotswap.engine.generation import Outbox
from hotswap.engine.in_flight import InFlightLedger
from hotswap.engine.kv import KvCache, KvShape
from hotswap.engine.logprobs import score_chosen
from hotswap.engine.model import CausalLm
from hotswap.engine.prefix_cache import PrefixCache
from hotswap.engine.request import Holding, Request
from hotswap.engine.sampling import choose_tokens
from hotswap.engine.stopping import Finish
from hotswap.engine.tally import Tally
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
        cache: PrefixCache,
        ledger: InFlightLedger,
        stamp: WeightStamp,
        max_running: int,
        max_prefill_tokens: int,
    ) -> None:
        self._model = model
        self._kv_shape = kv_shape
        self._cache = cache
        self._ledger = ledger
        self._max_running = max_running
        self._max_prefill_tokens = max_prefill_tokens
        self._running: list[Request] = []
        self._waiting: deque[Request] = deque()
        self._flushes = 0
        self._last_pass_end = time.perf_counter()
        self.stamp = stamp
        self.gate = Gate()
        self.outbox = Outbox()
        self.tally = Tally()

    def __repr__(self) -> str:
        return f"<Scheduler {len(self._running)} running {len(self._waiting)} waiting {self.gate}>"

    @property
    def has_work(self) -> bool:
        """Whether a step would run a forward pass."""
        if self.gate.state is GateState.CLOSED:
            return False
        return bool(self._running) or (self.gate.state is GateState.OPEN and bool(self._waiting))

    # --- requests

    def add(self, request: Request) -> None:
        """Queue a request, which the ledger counts already."""
        self._waiting.append(request)

    def abort(self, request: Request) -> None:
        """End a request with what it has; a no-op once it is over."""
        if not request.is_over:
            self._end(request, reason="abort")
            self._settle()

    def end_all(self, reason: str) -> int:
        """End every request with what it has; how many."""
        requests = [*self._running, *self._waiting]
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
        self._flushes += 1
        return self._cache.flush()

    def commit(self, stamp: WeightStamp) -> None:
        """From here on the weights are those of ``stamp``."""
        self.stamp = stamp
        self._cache.keep_only(stamp.epoch)

    # --- one step

    def step(self) -> None:
        """One forward pass for everything that runs, new requests among it.

        What goes wrong with one request ends that one with ``error``; what goes wrong
        with the pass itself ends all that are in it. The next go on.
        """
        try:
            with torch.inference_mode():
                self._admit()
                self._forward()
        except Exception:
            _log.exception("a forward pass failed; its %d requests end", len(self._running))
            for request in list(self._running):
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

    def _admit(self) -> None:
        new_tokens = 0
        while (
            self._waiting
            and self.gate.state is GateState.OPEN
            and len(self._running) < self._max_running
            and new_tokens < self._max_prefill_tokens
        ):
            request = self._waiting[0]
            with self._on_its_own(request, "its start"):
                new_tokens += self._start(request)

    def _start(self, request: Request) -> int:
        """Give the first that waits KV, as much as is known already; how many tokens are left."""
        epoch = self.stamp.epoch
        request.holding = holding = Holding(
            kv=KvCache(self._kv_shape), epoch=epoch, flushes=self._flushes
        )
        self._running.append(self._waiting.popleft())
        self._ledger.start()
        request.restart()
        known = request.tokens[: request.most_cached + 1]
        cached = self._cache.fill(holding.kv, known, epoch=epoch) if request.reuse else 0
        self.tally.count_start(cached)
        self.tally.prefill_tokens += len(request.tokens) - cached
        if not request.num_retractions:
            request.cached_tokens = cached
        return len(request.tokens) - cached

    def _forward(self) -> None:
        for request in list(self._running):
            with self._on_its_own(request, "room for its keys and values"):
                request.reserve()
        requests = list(self._running)
        if not requests:
            return
        batch = make_batch([request.work() for request in requests], self._kv_shape.device)
        segments = zip(requests, batch.segments, strict=True)
        scored = [rows for request, segment in segments if (rows := request.scored(segment))]
        logits = self._model(batch, scored=scored)
        tokens = choose_tokens([request.sampler for request in requests], logits)
        scores = score_chosen(logits, tokens, [request.logprobs for request in requests])
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
            _log.error(
                "request %s ends: its logits are not finite under weight epoch %d (version "
                "%s); look for NaN in that checkpoint and send another",
                request.rid,
                self.stamp.epoch,
                self.stamp.version,
            )
            self._end(request, reason="error")
            return
        if request.stop_rule.wants_none:
            finish: Finish | None = Finish(reason="length")
            self._send(request, None, finish)
        else:
            request.tokens.append(token)
            self.tally.generated_tokens += 1
            finish = request.stop_rule.push(token)
            self._send(request, token, finish, score=score)
        if finish is not None:
            self._remember(request)
            self._drop(request)

    def _remember(self, request: Request) -> None:
        """Offer the KV to the prefix cache, if these weights and no flush since made it all."""
        holding = request.holding
        if (
            holding is not None
            and request.reuse
            and holding.epoch == self.stamp.epoch
            and holding.flushes == self._flushes
        ):
            self._cache.insert(holding.kv, request.tokens, epoch=holding.epoch)

    # --- ends

    def _retract_all(self) -> None:
        for request in reversed(self._running):
            request.holding = None
            request.num_retractions += 1
            self.tally.retractions += 1
            self._ledger.park()
            self._waiting.appendleft(request)
        self._running.clear()

    def _end(self, request: Request, *, reason: str) -> None:
        self._send(request, None, Finish(reason=reason))
        self._drop(request)

    def _drop(self, request: Request) -> None:
        was_running = request.is_running
        if was_running:
            self._running.remove(request)
        else:
            self._waiting.remove(request)
        request.holding = None
        request.is_over = True
        self._ledger.leave(request.rid, was_running=was_running)

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
    ) -> None:
        chunk = TokenChunk(
            token_id=token,
            stamp=self.stamp,
            finish_reason=None if finish is None else finish.reason,
            matched_stop=None if finish is None else finish.matched,
            cached_tokens=request.cached_tokens,
            num_retractions=request.num_retractions,
            logprob=score,
            input_logprobs=() if request.input_scores is None else request.input_scores.deliver(),
        )
        self.outbox.put(request.generation, chunk)
