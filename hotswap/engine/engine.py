"""The embedded engine: serves and swaps one model in this process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Self

import torch

from hotswap.engine.generation import EmbeddedGeneration
from hotswap.engine.graphs import use_cuda_graphs
from hotswap.engine.in_flight import InFlightLedger
from hotswap.engine.intake import Intake
from hotswap.engine.kv import KvShape
from hotswap.engine.kv_memory import tokens_that_fit
from hotswap.engine.kv_room import KvRoom
from hotswap.engine.loading import LoadedModel, load_model
from hotswap.engine.model import VOCAB_MULTIPLE, CausalLm
from hotswap.engine.model_plan import plan_model
from hotswap.engine.prefix_cache import CacheStats, PrefixCache
from hotswap.engine.reuse import Reuse
from hotswap.engine.scheduler import Scheduler
from hotswap.engine.steps import EngineSteps
from hotswap.engine.threaded import ThreadedEngine
from hotswap.engine.tokenizer import TextCodec, load_codec
from hotswap.seams import GenerateRequest, Plan
from hotswap.types import EngineLoad, InFlightCounts, Manifest, Scope, WeightStamp
from hotswap.wire.devices import uuid_of

__all__ = ["EmbeddedEngine"]

_MAX_CACHE_ENTRIES = 4096
_HOST_CACHE_BYTES = 256 * 2**20


class EmbeddedEngine(ThreadedEngine[EngineSteps]):
    """Llama, Qwen2 or Qwen3 in torch; satisfies ``Engine``, ``Generator``, ``Inspector``,
    ``Resettable`` and ``Sleeper``.

    Use it as an async context manager: that starts and ends its one thread. It owns
    the model; ``model`` may be looked at, and written only through ``write``.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        codec: TextCodec | None = None,
        eos_token_ids: frozenset[int] = frozenset(),
        max_running_requests: int = 16,
        max_queued: int = 1024,
        chunked_prefill_size: int = 512,
        max_total_tokens: int | None = None,
        mem_fraction_static: float = 0.5,
        prefix_cache_bytes: int | None = None,
        disable_cuda_graph: bool = False,
        max_unread_chunks: int = 1024,
        stamp: WeightStamp | None = None,
        path: Path | None = None,
    ) -> None:
        """Use :meth:`from_directory`, unless the model is built elsewhere.

        ``chunked_prefill_size`` bounds the prompt tokens of a forward pass,
        ``max_total_tokens`` (None: nothing else) and the fraction of the memory that is
        free now bound the tokens whose keys and values are held. ``prefix_cache_bytes``
        of them, None for the default of the device, may be of texts that have ended.
        On CUDA decode steps are captured once, unless ``disable_cuda_graph``. ``origin``
        is for a server to set that knows which bytes were loaded (``hotswap.sparse.Base``).
        A request stands still while ``max_unread_chunks`` of it wait to be read.
        Raises: ValueError for bounds under which nothing could run.
        """
        for name, value in (
            ("max_running_requests", max_running_requests),
            ("chunked_prefill_size", chunked_prefill_size),
            ("max_unread_chunks", max_unread_chunks),
        ):
            if value < 1:
                raise ValueError(f"{name} is {value}, wanted at least 1")
        config = loaded.model.config
        self._path = path
        self.origin: object | None = None
        self._max_running = max_running_requests
        self._max_queued = max_queued
        self._ledger = InFlightLedger(max_running=max_running_requests, max_queued=max_queued)
        weight = loaded.model.lm_head.weight
        self._kv_shape = KvShape(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=weight.dtype,
            device=weight.device,
        )
        # Before memory is shared out: graphs take some.
        self._has_graphs = not disable_cuda_graph and use_cuda_graphs(
            loaded.model, max_running=max_running_requests
        )
        self._room = KvRoom(
            tokens_that_fit(
                self._kv_shape,
                max_total_tokens=max_total_tokens,
                mem_fraction_static=mem_fraction_static,
            )
        )
        if prefix_cache_bytes is None and weight.device.type == "cpu":
            # Host memory is everybody's; that of a device has no other use.
            prefix_cache_bytes = _HOST_CACHE_BYTES
        self._cache = PrefixCache(max_entries=_MAX_CACHE_ENTRIES, max_bytes=prefix_cache_bytes)
        live = stamp or WeightStamp()
        self.model: CausalLm = loaded.model
        self._scheduler = Scheduler(
            loaded.model,
            kv_shape=self._kv_shape,
            reuse=Reuse(self._cache, epoch=live.epoch),
            room=self._room,
            ledger=self._ledger,
            stamp=live,
            max_running=max_running_requests,
            max_prefill_tokens=chunked_prefill_size,
        )
        super().__init__(
            EngineSteps(
                self._scheduler,
                loaded.target,
                eos=config.eos_token_ids | loaded.eos_token_ids | eos_token_ids,
                recapture=self._recapture,
            )
        )
        self._intake = Intake(
            config,
            scheduler=self._scheduler,
            loop=self._loop,
            ledger=self._ledger,
            codec=codec,
            max_unread=max_unread_chunks,
            max_tokens=min(config.max_context, self._room.total),
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
        prefix_cache_bytes: int | None = None,
        disable_cuda_graph: bool = False,
        max_unread_chunks: int = 1024,
        vocab_multiple: int = VOCAB_MULTIPLE,
        stamp: WeightStamp | None = None,
    ) -> Self:
        """Load a Hugging Face directory. Blocks; any thread.

        ``dtype`` auto is the checkpoint's, ``device`` auto is CUDA where there is one.
        Without ``tokenizer.json`` only token ids are served. Raises: UpdateRejected for
        a checkpoint that is not whole, ValueError for what the engine does not run.
        """
        directory = Path(path)
        loaded = load_model(directory, dtype=dtype, device=device, vocab_multiple=vocab_multiple)
        return cls(
            loaded,
            codec=load_codec(directory),
            max_running_requests=max_running_requests,
            max_queued=max_queued,
            chunked_prefill_size=chunked_prefill_size,
            max_total_tokens=max_total_tokens,
            mem_fraction_static=mem_fraction_static,
            prefix_cache_bytes=prefix_cache_bytes,
            disable_cuda_graph=disable_cuda_graph,
            max_unread_chunks=max_unread_chunks,
            stamp=stamp,
            path=directory,
        )

    def __repr__(self) -> str:
        config, counts = self.model.config, self.in_flight
        return (
            f"<EmbeddedEngine {config.architecture} {self._loop!r} "
            f"running={counts.running} waiting={counts.waiting}>"
        )

    # --- what is live; any thread

    @property
    def in_flight(self) -> InFlightCounts:
        """Requests from ``submit`` to their last chunk."""
        return self._ledger.counts

    @property
    def device_uuid(self) -> str | None:
        """By which pushes to the device of the weights are labelled; None on the CPU."""
        return uuid_of(self._kv_shape.device)

    @property
    def cache_stats(self) -> CacheStats:
        """Hits and misses since the last flush, entries and bytes now."""
        return self._cache.stats

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
            kv_tokens_used=self._room.used,
            kv_tokens_total=self._room.total,
            cached_tokens=self._cache.size_tokens,
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
        return {
            "model_path": None if self._path is None else str(self._path),
            "model_type": config.model_type,
            "architectures": [config.architecture],
            "vocab_size": config.vocab_size,
            "num_layers": config.num_layers,
            "hidden_size": config.hidden_size,
            "num_attention_heads": config.num_attention_heads,
            "num_kv_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "intermediate_size": config.intermediate_size,
            "tie_word_embeddings": config.tie_word_embeddings,
            "max_position_embeddings": config.max_position_embeddings,
            "max_context": config.max_context,
            "max_total_tokens": self._room.total,
            "eos_token_ids": sorted(self._steps.eos),
            "dtype": str(self._kv_shape.dtype).removeprefix("torch."),
            "device": str(self._kv_shape.device),
            "has_tokenizer": self._intake.has_codec,
            "max_running_requests": self._max_running,
            "cuda_graphs": self._has_graphs,
        }

    def plan(self, manifest: Manifest, scope: Scope) -> Plan:
        """Compare configurations where the source has one, then every tensor.

        Raises: UpdateRejected with everything that is wrong.
        """
        return plan_model(self._steps.target, manifest, scope, live=self.model.config)

    # --- memory; event loop

    async def sleep(self, tags: frozenset[str]) -> None:
        """See ``seams.Sleeper``. Raises: RuntimeError while not paused."""
        await self._loop.call(partial(self._steps.sleep, tags))

    async def wake(self, tags: frozenset[str]) -> bool:
        """See ``seams.Sleeper``: weights come back without their values.

        Raises: MemoryError; RuntimeError while not paused.
        """
        return await self._loop.call(partial(self._steps.wake, tags))

    def _recapture(self, back: bool) -> None:
        self.model.model.graphs = None
        if back and self._has_graphs:
            use_cuda_graphs(self.model, max_running=self._max_running)

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
