"""The engine: a transformers model, batched continuously, its weights swapped in place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch

from hotswap.engine.generation import EmbeddedGeneration
from hotswap.engine.in_flight import InFlightLedger
from hotswap.engine.kv import KvShape
from hotswap.engine.kv_memory import tokens_that_fit
from hotswap.engine.threaded import ThreadedEngine
from hotswap.engine.tokenizer import TextCodec, load_codec
from hotswap.seams import GenerateRequest, Plan
from hotswap.types import EngineLoad, InFlightCounts, Manifest, Scope, WeightStamp
from hotswap_transformers.batching import Batching
from hotswap_transformers.intake import Intake
from hotswap_transformers.loading import LoadedModel, load_model, plan_model
from hotswap_transformers.scheduler import BatchScheduler
from hotswap_transformers.steps import BatchSteps
from hotswap_transformers.trying import alone, check_batching

__all__ = ["TransformersEngine"]

_MOST_TOKENS = 65536
"""Tokens that the cache has place for unless more are asked for: masks grow with them."""


class TransformersEngine(ThreadedEngine[BatchSteps]):
    """Satisfies ``Engine``, ``Generator``, ``Inspector`` and ``Resettable``.

    Use it as an async context manager: that starts and ends its one thread. It owns
    the model, which may be looked at, and written only through ``write``.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        codec: TextCodec | None = None,
        max_running_requests: int = 16,
        max_queued: int = 1024,
        chunked_prefill_size: int = 512,
        max_total_tokens: int | None = None,
        mem_fraction_static: float = 0.5,
        max_unread_chunks: int = 1024,
        stamp: WeightStamp | None = None,
        path: Path | None = None,
    ) -> None:
        """Use :meth:`from_directory`, unless the model is built elsewhere.

        ``chunked_prefill_size`` bounds the tokens of a forward pass, ``max_total_tokens``
        and the fraction of the memory that is free now bound the tokens in the cache.
        A request stands still while ``max_unread_chunks`` of it wait to be read.
        Raises: ValueError for a model that transformers does not batch, or not rightly.
        """
        self.model: Any = loaded.model
        self._config = loaded.config
        self._path = path
        self._max_running, self._max_queued = max_running_requests, max_queued
        self._ledger = InFlightLedger(max_running=max_running_requests, max_queued=max_queued)
        config = self.model.config.get_text_config()
        # Some have no longest text, only a cache that is full one day.
        self._max_context = int(getattr(config, "max_position_embeddings", None) or _MOST_TOKENS)
        scheduler = BatchScheduler(
            ledger=self._ledger, stamp=stamp or WeightStamp(), max_running=max_running_requests
        )
        wanted = alone(self.model)
        self._batching = Batching(
            self.model,
            choose=scheduler.choose,
            matched=scheduler.matched,
            max_running=max_running_requests,
            max_total_tokens=tokens_that_fit(
                _kv_shape(self.model, config),
                max_total_tokens=max_total_tokens or _MOST_TOKENS,
                mem_fraction_static=mem_fraction_static,
            ),
            max_batch_tokens=chunked_prefill_size,
        )
        try:
            check_batching(self._batching, wanted, model=self.model)
        except ValueError:
            self._batching.close()
            raise
        scheduler.run_on(self._batching)
        self._scheduler = scheduler
        super().__init__(
            BatchSteps(scheduler, loaded.target, eos=loaded.eos_token_ids),
            name="hotswap-transformers",
        )
        self._intake = Intake(
            scheduler=scheduler,
            loop=self._loop,
            ledger=self._ledger,
            codec=codec,
            vocab_size=int(config.vocab_size),
            max_context=self._max_context,
            max_tokens=min(self._max_context, self._batching.total_tokens),
            max_unread=max_unread_chunks,
            eos=lambda: self._steps.eos,
        )

    @classmethod
    def from_directory(
        cls,
        path: str | Path,
        *,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device = "auto",
        max_running_requests: int = 16,
        max_queued: int = 1024,
        chunked_prefill_size: int = 512,
        max_total_tokens: int | None = None,
        mem_fraction_static: float = 0.5,
        max_unread_chunks: int = 1024,
        stamp: WeightStamp | None = None,
    ) -> Self:
        """Load a Hugging Face directory. Blocks; any thread.

        Without ``tokenizer.json`` only token ids are served. Raises: UpdateRejected for
        a checkpoint that is not whole, ValueError for what transformers does not run.
        """
        directory = Path(path)
        return cls(
            load_model(directory, dtype=dtype, device=device),
            codec=load_codec(directory),
            max_running_requests=max_running_requests,
            max_queued=max_queued,
            chunked_prefill_size=chunked_prefill_size,
            max_total_tokens=max_total_tokens,
            mem_fraction_static=mem_fraction_static,
            max_unread_chunks=max_unread_chunks,
            stamp=stamp,
            path=directory,
        )

    def __repr__(self) -> str:
        counts = self.in_flight
        return (
            f"<TransformersEngine {type(self.model).__name__} {self._loop!r} "
            f"running={counts.running} waiting={counts.waiting}>"
        )

    def close(self) -> None:
        """End every request with ``abort``, and the thread. Blocks; idempotent."""
        super().close()
        self._batching.close()

    # --- what is live; any thread

    @property
    def in_flight(self) -> InFlightCounts:
        """Requests from ``submit`` to their last chunk."""
        return self._ledger.counts

    @property
    def load(self) -> EngineLoad:
        """How busy the engine is now, and what it has done since its start."""
        counts, tally = self.in_flight, self._scheduler.tally
        return EngineLoad(
            running=counts.running,
            waiting=counts.waiting,
            stalled=self._scheduler.num_stalled,
            max_running=self._max_running,
            max_queued=self._max_queued,
            kv_tokens_used=self._steps.used_tokens,
            kv_tokens_total=self._batching.total_tokens,
            cache_hits=tally.cache_hits,
            cache_misses=tally.cache_misses,
            cache_hit_tokens=tally.cache_hit_tokens,
            prefill_tokens=tally.prefill_tokens,
            generated_tokens=tally.generated_tokens,
            retractions=tally.retractions,
        )

    def describe(self) -> dict[str, object]:
        """The model and the engine's bounds, in JSON types."""
        config = self.model.config
        text = config.get_text_config()
        return {
            "model_path": None if self._path is None else str(self._path),
            "model_type": config.model_type,
            "architectures": [type(self.model).__name__],
            "vocab_size": text.vocab_size,
            "num_layers": text.num_hidden_layers,
            "hidden_size": text.hidden_size,
            "max_context": self._max_context,
            "max_total_tokens": self._batching.total_tokens,
            "eos_token_ids": sorted(self._steps.eos),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "device": str(self.model.device),
            "has_tokenizer": self._intake.has_codec,
            "max_running_requests": self._max_running,
        }

    def plan(self, manifest: Manifest, scope: Scope) -> Plan:
        """Compare configurations where the source has one, then every tensor.

        Raises: UpdateRejected with everything that is wrong.
        """
        return plan_model(self._steps.target, manifest, scope, live=self._config)

    # --- generation; event loop

    def submit(self, request: GenerateRequest) -> EmbeddedGeneration:
        """Queue a request.

        Raises: ValueError for a request that cannot run, QueueFull when too many
        wait, RuntimeError when the engine has ended.
        """
        return self._intake.submit(request)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``. Raises: ValueError without a tokenizer."""
        return self._intake.text_codec.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """See ``seams.Generator``. Raises: ValueError without a tokenizer."""
        codec = self._intake.text_codec
        return codec.decode(token_ids, skip_special_tokens=skip_special_tokens)


def _kv_shape(model: Any, config: Any) -> KvShape:
    heads = int(getattr(config, "num_attention_heads", 0) or 0)
    if not heads:
        raise ValueError(
            f"{type(model).__name__} has no attention heads, wanted keys and values to batch; "
            "serve a model of an architecture with attention"
        )
    return KvShape(
        num_layers=int(config.num_hidden_layers),
        num_kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        dtype=model.dtype,
        device=model.device,
    )
