"""The protocols that plug-ins and embedders implement.

Rule: an async method runs on the event loop's thread and must not block it; a
sync method says on which thread it is called.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch

from hotswap.types import (
    Bucket,
    InFlightCounts,
    Manifest,
    PauseMode,
    Placement,
    Scope,
    TensorSpec,
    Update,
    WeightStamp,
)

__all__ = [
    "Engine",
    "EnginePause",
    "GenerateRequest",
    "Generation",
    "Generator",
    "Inspector",
    "LoadStrategy",
    "LogprobsWanted",
    "Patchable",
    "Plan",
    "Resettable",
    "SamplingParams",
    "Sleeper",
    "Stage",
    "TokenChunk",
    "TokenLogprob",
    "Traced",
]


class Stage(Protocol):
    """A source that has been fetched and is ready to deliver every tensor."""

    @property
    def manifest(self) -> Manifest:
        """Everything that ``buckets`` will deliver."""
        ...

    def buckets(self) -> Iterable[Bucket]:
        """Deliver every tensor of the manifest once; each call starts afresh.

        Called on a worker thread. Opens no file and no socket: what it needs
        was opened when the stage was entered.
        """
        ...


@runtime_checkable
class Traced(Protocol):
    """A stage that knows which bytes it has, and not only what they are called."""

    @property
    def origin(self) -> object | None:
        """A ``hotswap.sparse.Origin``; None for a directory that no pull keeps."""
        ...


class LoadStrategy(Protocol):
    """Where weights come from. Its name is the key it is registered under."""

    def open(self, update: Update, placement: Placement) -> AbstractAsyncContextManager[Stage]:
        """Fetch on entry (the server keeps serving), release everything on exit.

        Raises: UpdateRejected when the source is not what was asked for.
        """
        ...


class Plan(Protocol):
    """A validated update: where each named tensor goes. Nothing is written yet."""

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Checkpoint name -> the shape and *live* dtype that staging should hold."""
        ...

    @property
    def missing(self) -> tuple[str, ...]:
        """Names that the live model has and the manifest lacks (partial scope only)."""
        ...

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names that were skipped by rule (never because nobody looked)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePause:
    """Forward passes have stopped: ``since`` is ``time.perf_counter()`` of the last end."""

    num_aborted: int
    since: float


class Engine(Protocol):
    """What the controller needs of a thing that runs forward passes, and no more."""

    @property
    def in_flight(self) -> InFlightCounts:
        """Requests inside the engine now. Any thread; never blocks."""
        ...

    def manifest(self) -> Manifest:
        """Checkpoint names, live dtypes and shapes of a full update. Any thread."""
        ...

    def plan(self, manifest: Manifest, scope: Scope) -> Plan:
        """Validate every name, shape, dtype and range. Any thread; writes nothing.

        Raises: UpdateRejected with everything that is wrong.
        """
        ...

    async def pause(self, mode: PauseMode) -> EnginePause:
        """Return once no forward pass runs and in-flight requests met ``mode``.

        May be called while an earlier pause still drains (a stronger mode takes
        over). Cancelled before it is done: the engine runs on as before.
        """
        ...

    async def resume(self) -> None:
        """Let forward passes run. A no-op when they do."""
        ...

    async def flush(self) -> int:
        """Drop every cached prefix that no running request holds; how many went."""
        ...

    async def write(self, plan: Plan, bucket: Bucket) -> None:
        """Copy a bucket into the live weights, on the engine's own thread.

        Only while paused. Absolute values: writing the same bucket twice is
        writing it once. Raises whatever went wrong, the weights then torn.
        """
        ...

    async def commit(self, stamp: WeightStamp) -> None:
        """Recompute derived tensors, run post-load hooks once, adopt ``stamp``."""
        ...


@runtime_checkable
class Inspector(Protocol):
    """An engine that can show its live weights.

    It reads and writes in the order in which it is asked: a ``write`` that is called while
    a read runs comes after all of it.
    """

    async def read_weight(self, name: str, rows: int) -> torch.Tensor:
        """First ``rows`` of dimension 0, float32 or integer, CPU, a copy.

        Raises: KeyError for a name that is neither live nor a checkpoint name.
        """
        ...

    async def checksums(self) -> dict[str, str]:
        """xxh3-64 (16 hex digits) of every parameter and buffer, by live name."""
        ...


@runtime_checkable
class Patchable(Protocol):
    """An engine of whose live weights single elements may be changed.

    Jobs know their places in the tensors that ``plan`` was made of.
    """

    async def look(self, job: Callable[[], None]) -> None:
        """Run ``job``, which reads live weights, where nothing writes them or lets them go
        meanwhile. Serving goes on after it. Raises what ``job`` raises."""
        ...

    async def patch(self, plan: Plan | None, jobs: Sequence[Callable[[], None]]) -> None:
        """Run ``jobs``, which write live weights, as ``write`` does a bucket: in any order, on
        any threads, until all are over. ``plan`` None puts back what was there.

        Only while paused. Raises what a job raises, the weights then torn.
        """
        ...

    async def commit(self, stamp: WeightStamp) -> None:
        """See ``Engine``."""
        ...


@runtime_checkable
class Resettable(Protocol):
    """An engine that can spoil its weights, so that a client sees an update restore them."""

    async def reset_weights(self, skipped: Sequence[str]) -> tuple[str, ...]:
        """Overwrite weights with noise, on the engine's own thread; the live names.

        Only while paused. Weights that have one of ``skipped`` in a name of theirs stay,
        and so does what a full update would not bring back.
        """
        ...


@runtime_checkable
class Sleeper(Protocol):
    """An engine that can do without memory for a while, and gives it back to the system.

    ``tags`` are of ``weights`` and ``kv_cache``. Only while paused, on the engine's own
    thread. Nothing reads, writes or runs weights between a ``sleep`` and the ``wake``.
    """

    async def sleep(self, tags: frozenset[str]) -> None:
        """Let go of the memory of ``tags``, with what is in it; ``kv_cache`` drops cached
        prefixes, and no request holds keys and values any more.

        Raises: CommandError when it cannot, and has not begun. Whatever else it raises, all of
        the weights have memory then, but not their values.
        """
        ...

    async def wake(self, tags: frozenset[str]) -> bool:
        """Take the memory again; whether the weights in it are those that were there.

        Raises: MemoryError when there is none; nothing has come back then.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens. Temperature 0 is greedy.

    Penalties and ``min_p`` mean what they mean in SGLang; the defaults change nothing.
    No end of text and no stop before ``min_new_tokens``. ``max_new_tokens`` 0 computes
    the prompt and no token. Without ``skip_special_tokens`` stop strings are looked for
    in a text that shows them.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobsWanted:
    """Which log-probabilities a request asks for, besides those of its output tokens.

    ``input_start`` is the first prompt position whose token is scored, None for none.
    Every scored position also gives the ``top`` likeliest tokens, and ``token_ids``.
    """

    input_start: int | None = None
    top: int = 0
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """How likely a token was, natural logarithm, before penalties, top-k, top-p and min-p.

    Output tokens are scored at the request's temperature (greedy ones at 1), a prompt at 1.
    ``logprob`` is None for the first token of a text, which nothing comes before.
    ``top`` (likeliest first) and ``asked`` are pairs of token id and log-probability.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()
    asked: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One prompt, already tokenised. ``rid`` is unique among requests in flight.

    ``logprobs`` None asks for no log-probabilities at all.
    """

    rid: str
    input_ids: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    logprobs: LogprobsWanted | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChunk:
    """One output token, or the end.

    ``stamp`` names the weights whose forward pass made ``token_id``. The last
    chunk has ``finish_reason`` (``stop``, ``length``, ``abort``, ``error``) and
    may carry no token. ``input_logprobs`` come with the first token, or with the end
    of a request for none. ``error`` is why the reason is ``error``, for the client to
    read, where the engine knows; without one it is a fault of the engine.
    """

    token_id: int | None
    stamp: WeightStamp
    finish_reason: str | None = None
    matched_stop: int | str | None = None
    cached_tokens: int = 0
    num_retractions: int = 0
    logprob: TokenLogprob | None = None
    input_logprobs: tuple[TokenLogprob, ...] = ()
    error: str | None = None


class Generation(Protocol):
    """A request inside the engine: iterate its chunks; abort it at any token."""

    def __aiter__(self) -> AsyncIterator[TokenChunk]:
        """Chunks in order; ends after the one with a finish reason."""
        ...

    def abort(self) -> None:
        """Ask for the end; the last chunk says ``abort``. Idempotent."""
        ...


@runtime_checkable
class Generator(Protocol):
    """An engine that also generates text for the HTTP routes."""

    def submit(self, request: GenerateRequest) -> Generation:
        """Queue a request. Event-loop thread; never blocks.

        Raises: ValueError for a prompt the engine cannot run; QueueFull when too many wait.
        """
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``, with what the tokenizer puts around each unless told otherwise.

        Raises: ValueError without a tokenizer.
        """
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ``token_ids``. Raises: ValueError without a tokenizer."""
        ...
