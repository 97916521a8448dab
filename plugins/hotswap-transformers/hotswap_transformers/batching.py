"""transformers' continuous batching, one step at a time on a thread of our own.

Rules:

* Its manager's own thread is never started: whoever calls ``step`` is the thread that
  reads the weights, so that between two steps nobody does.
* It never ends a request by itself, has no end-of-text token and no limit: tokens are
  chosen and judged here, as in the embedded engine.
* Blocks of the cache are shared between texts under the hash of their tokens, which
  does not know of weights. So ``forget`` takes every hash away, and requests that began
  before it never give their blocks a hash again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers.generation.continuous_batching.model_runner import ModelRunner
from transformers.generation.continuous_batching.requests import RequestState

__all__ = ["Batching", "Choose", "PAGE_TOKENS"]

PAGE_TOKENS = 32
"""Tokens of one block of the cache: the grain in which texts share their beginnings."""

Choose = Callable[[Sequence[str], torch.Tensor], Sequence[int]]
"""Takes request ids and their logits ``[requests x vocabulary]``; a token for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A text that began with ``tokens`` that were in the cache."""

    rid: str
    tokens: int


class Batching:
    """A paged cache and a scheduler of transformers, for one model. One thread."""

    def __init__(
        self,
        model: Any,
        *,
        choose: Choose,
        max_running: int,
        max_total_tokens: int,
        max_batch_tokens: int,
        matched: Callable[[Match], None],
    ) -> None:
        """``max_batch_tokens`` bounds a forward pass. ``matched`` hears of each text that
        starts, and how much of it was there already."""
        self._model = model
        self._matched = matched
        bounds = transformers.ContinuousBatchingConfig(
            page_size=PAGE_TOKENS,
            num_blocks=max(1, max_total_tokens // PAGE_TOKENS),
            max_batch_tokens=max(max_batch_tokens, max_running),
            max_requests_per_batch=max_running,
            # Only what runs kernel by kernel lets us choose the tokens.
            max_blocks_per_request=0,
            use_cuda_graph=False,
            use_async_batching=False,
            # Another attention would be fetched from the network.
            auto_switch_to_flash=False,
            safety_margin=0.0,
        )
        untyped: Any = transformers.GenerationConfig
        self._manager = model.init_continuous_batching(
            generation_config=untyped(do_sample=False, eos_token_id=-1),
            continuous_batching_config=bounds,
        )
        self._processor = self._manager._create_batch_processor()
        self._runner = _runner(self._processor, choose)
        self._processor.model_runner = self._runner
        self._inputs: dict[str, Any] = {}
        self._watching = model.register_forward_pre_hook(self._see_inputs, with_kwargs=True)
        self._watch_cache()
        self._stale: set[str] = set()

    def __repr__(self) -> str:
        return f"<Batching {len(self.rids)} requests {self.entries} cached blocks>"

    @property
    def rids(self) -> list[str]:
        """Every request that is in it, oldest first."""
        scheduler = self._processor.scheduler
        return [*scheduler.active_requests, *scheduler.waiting_requests_order]

    @property
    def total_tokens(self) -> int:
        """Tokens that the cache has place for."""
        return int(self._cache.num_blocks) * PAGE_TOKENS

    @property
    def used_tokens(self) -> int:
        """Tokens' worth of blocks that hold something."""
        return round(self.total_tokens * (1 - float(self._cache.compute_free_capacity())))

    @property
    def entries(self) -> int:
        """Blocks that other texts could begin with."""
        return sum(len(ledger.block_to_hash) for ledger in self._ledgers)

    @property
    def _cache(self) -> Any:
        return self._processor.cache

    @property
    def _ledgers(self) -> list[Any]:
        return [allocator.ledger for allocator in self._cache.cache_allocators.values()]

    def add(self, rid: str, tokens: Sequence[int]) -> None:
        """Have ``tokens`` computed, and then one after the other."""
        state = RequestState(request_id=rid, initial_tokens=list(tokens), max_new_tokens=None)
        self._processor.scheduler.add_waiting_request(state)

    def drop(self, rid: str) -> None:
        """Let go of a request and its blocks; those with a hash stay for others."""
        scheduler = self._processor.scheduler
        scheduler.set_request_cancellation(rid)
        scheduler.clear_cancelled_requests()
        # Set when memory ran out; transformers looks for an end that is always ours.
        scheduler.block_new_requests = False
        self._stale.discard(rid)

    def step(self) -> None:
        """One forward pass, if there is anything to compute. Raises: what it raises."""
        if self._processor.prepare_next_batch():
            self._processor._generation_step(self._model)
            self._processor.update_batch()

    def try_out(
        self, texts: Mapping[str, Sequence[int]], *, next_token: int
    ) -> dict[str, torch.Tensor]:
        """Logits after each text, and after ``next_token`` that follows: ``[2 x vocabulary]``.

        Computed together, before anything else; nothing of it stays. Raises: whatever the
        model does.
        """
        seen: dict[str, list[torch.Tensor]] = {rid: [] for rid in texts}

        def choose(rids: Sequence[str], logits: torch.Tensor) -> list[int]:
            for rid, row in zip(rids, logits, strict=True):
                seen[rid].append(row.float().clone())
            return [next_token] * len(rids)

        serving = self._runner.choose, self._matched
        self._runner.choose, self._matched = choose, lambda _match: None
        try:
            for rid, tokens in texts.items():
                self.add(rid, tokens)
            # Two passes, or two for each where only one may run at a time.
            for _ in range(2 * len(texts)):
                self.step()
                for rid in self.rids:
                    if len(seen[rid]) == 2:
                        self.drop(rid)
        finally:
            self._runner.choose, self._matched = serving
            self.clear()
        return {rid: torch.stack(rows) for rid, rows in seen.items()}

    def clear(self) -> None:
        """Let go of everything, after a step that failed half way."""
        self._processor.reset()
        self._cache.reset()
        self._stale.clear()

    def forget(self) -> int:
        """No text begins with what has been computed so far; how many blocks went."""
        entries = self.entries
        self._cache.evict_cached_blocks()
        for ledger in self._ledgers:
            # Blocks of requests that are still here: they go back to the pool with them.
            ledger.hash_to_block.clear()
            ledger.block_to_hash.clear()
        self._stale.update(self._processor.scheduler.active_requests)
        return entries

    def close(self) -> None:
        """Give the model back its attention. Idempotent."""
        self._watching.remove()
        self._manager.destroy()

    def _see_inputs(self, _module: object, _args: object, inputs: dict[str, Any]) -> None:
        self._inputs = inputs

    def _watch_cache(self) -> None:
        cache = self._cache
        search, mark = cache.search_prefix_match, cache.mark_complete_blocks
        update = cache.update

        def search_prefix_match(request_id: str, prompt_ids: list[int]) -> int:
            tokens = int(search(request_id, prompt_ids))
            self._matched(Match(rid=request_id, tokens=tokens))
            return tokens

        def mark_complete_blocks(state: Any, complete_blocks: Mapping[str, int]) -> None:
            if state.request_id not in self._stale:
                mark(state, complete_blocks)

        def update_with_inputs(
            keys: torch.Tensor, values: torch.Tensor, layer: int, kwargs: Any = None
        ) -> tuple[torch.Tensor, torch.Tensor]:
            # Older models hand on none of what the batch came with.
            found: tuple[torch.Tensor, torch.Tensor] = update(
                keys, values, layer, dict(self._inputs) if kwargs is None else kwargs
            )
            return found

        cache.update = update_with_inputs
        cache.search_prefix_match = search_prefix_match
        cache.mark_complete_blocks = mark_complete_blocks


def _runner(processor: Any, choose: Choose) -> _ChoosingRunner:
    return _ChoosingRunner(
        logit_processor=processor.logit_processor,
        cb_config=processor.cb_config,
        cache=processor.cache,
        inputs_and_outputs=processor.inputs_and_outputs,
        do_sample=False,
        return_logprobs=False,
        choose=choose,
    )


class _ChoosingRunner(ModelRunner):
    """Runs the model as transformers does, and has somebody else choose the tokens."""

    def __init__(self, *, choose: Choose, **parts: Any) -> None:
        super().__init__(**parts)
        self.choose = choose

    def _sample(self, scores: torch.Tensor, output_ids: torch.Tensor) -> None:
        inputs: Any = self.inputs_and_outputs
        batch = inputs.requests_in_batch
        rids = [future.state.request_id for future in batch if future.has_new_token]
        if rids:
            tokens = self.choose(rids, scores[0, : len(rids)])
            output_ids[0, : len(rids)] = torch.tensor(tokens, device=output_ids.device)
