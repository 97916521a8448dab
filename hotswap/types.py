"""The values that travel between the parts: frozen, slotted, keyword-only."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import partial
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

import torch

from hotswap.errors import UpdateRejected

__all__ = [
    "Bucket",
    "CommitMode",
    "EngineLoad",
    "InFlightCounts",
    "LoadMode",
    "Manifest",
    "PauseMode",
    "Payload",
    "Placement",
    "Readable",
    "Scope",
    "TensorSpec",
    "Update",
    "UpdateReport",
    "WeightStamp",
    "member",
]

MAX_LABEL_CHARACTERS = 4096
"""How long a version's label or a strategy's name may be: both come back in replies."""

Word = TypeVar("Word", bound=Enum)


def member(kind: type[Word], given: object, *, what: str) -> Word:
    """The member of ``kind`` that ``given`` is, or spells.

    The code compares members by identity, so that every entrance for callers' values passes
    them through here: a text that looks like a member would be taken for none of them.

    Raises: ValueError with the words that there are.
    """
    if isinstance(given, kind):
        return given
    try:
        return kind(given)
    except ValueError:
        words = ", ".join(repr(word.value) for word in kind)
        raise ValueError(f"{what} is {given!r:.80}, wanted one of {words}") from None


class PauseMode(StrEnum):
    """What a pause does with requests in flight.

    ``abort`` ends them with what they have; ``retract`` drops their KV, parks
    them and recomputes after the resume; ``in_place`` freezes them with their
    KV; ``wait`` lets them finish.
    """

    ABORT = "abort"
    RETRACT = "retract"
    IN_PLACE = "in_place"
    WAIT = "wait"

    @property
    def strength(self) -> int:
        """How promptly the mode stops work; a stronger pause overtakes a weaker one."""
        return _STRENGTH[self]


_STRENGTH = {PauseMode.WAIT: 0, PauseMode.IN_PLACE: 1, PauseMode.RETRACT: 2, PauseMode.ABORT: 3}


class Scope(StrEnum):
    """Whether an update must cover every weight, or may touch a few."""

    FULL = "full"
    PARTIAL = "partial"


class LoadMode(StrEnum):
    """Where bytes go: host memory first (undo is possible), or the live weights."""

    STAGED = "staged"
    DIRECT = "direct"


class CommitMode(StrEnum):
    """What a commit wrote: every weight of its source, or what differs from the live ones."""

    FULL = "full"
    SPARSE = "sparse"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Name, dtype and shape of one tensor in checkpoint coordinates."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of the dense tensor."""
        return self.numel * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name} {list(self.shape)} {str(self.dtype).removeprefix('torch.')}"


@runtime_checkable
class Readable(Protocol):
    """A tensor that is not in memory yet, but whose source is already open.

    ``read_into`` fills ``out`` (contiguous, CPU, exactly ``spec``) and may be
    called more than once and from any thread. It opens nothing.
    """

    @property
    def spec(self) -> TensorSpec:
        """Name, dtype and shape of what ``read_into`` delivers."""
        ...

    def read_into(self, out: torch.Tensor) -> None:
        """Fill ``out``. Raises: OSError when the source cannot deliver every byte."""
        ...


Payload: TypeAlias = torch.Tensor | Readable
Bucket: TypeAlias = Sequence[tuple[str, Payload]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a source says that it will deliver, before it delivers any of it.

    ``config`` is the checkpoint's model configuration (``config.json``) where
    the source has one; engines compare it with what they run. ``generation_config``
    (``generation_config.json``) says, among other things, which tokens end a text.

    Raises: UpdateRejected when a name appears twice.
    """

    tensors: tuple[TensorSpec, ...]
    config: Mapping[str, object] | None = None
    generation_config: Mapping[str, object] | None = None
    _by_name: Mapping[str, TensorSpec] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name: dict[str, TensorSpec] = {}
        for spec in self.tensors:
            if spec.name in by_name:
                raise UpdateRejected(
                    f"tensor {spec.name!r} appears twice in the source, wanted once; "
                    "remove one of the copies"
                )
            by_name[spec.name] = spec
        object.__setattr__(self, "_by_name", by_name)

    @classmethod
    def of(
        cls,
        tensors: Iterable[TensorSpec],
        *,
        config: Mapping[str, object] | None = None,
        generation_config: Mapping[str, object] | None = None,
    ) -> Manifest:
        """Build a manifest from any iterable of specs."""
        return cls(tensors=tuple(tensors), config=config, generation_config=generation_config)

    @property
    def names(self) -> tuple[str, ...]:
        """Every tensor name, in source order."""
        return tuple(self._by_name)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(spec.size_bytes for spec in self.tensors)

    def __getitem__(self, name: str) -> TensorSpec:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __len__(self) -> int:
        return len(self.tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where this process stands among those that serve one model."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    host: str = field(default_factory=socket.gethostname)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One request to change the weights.

    ``version`` and ``token_step`` are labels; None keeps the previous one.
    ``pause_mode`` is how a swap on a serving engine meets requests in flight:
    None refuses beside them, ``retract`` or ``in_place`` lets them live through
    it, ``abort`` is what the wire calls ``abort_all_requests``.
    ``options`` carries what only the named strategy understands. A ``chunk`` is a partial
    update that others complete: weights that are not whole take it too, and are whole
    when chunks have covered all of them. With ``only_epoch`` it is rejected once other weights
    are live than those of that epoch.

    Text that spells a ``scope``, a ``mode`` or a ``pause_mode`` becomes the member, and a path
    as ``source`` its text. Raises: ValueError for any other, and for a ``version`` or a
    ``strategy`` that is no text, is longer than 4096 characters or cannot be sent as Unicode.
    """

    source: str
    strategy: str = "disk"
    scope: Scope = Scope.FULL
    mode: LoadMode = LoadMode.STAGED
    version: str | None = None
    token_step: int | None = None
    flush_cache: bool = True
    pause_mode: PauseMode | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    chunk: bool = False
    only_epoch: int | None = None

    def __post_init__(self) -> None:
        become = partial(object.__setattr__, self)
        become("source", _source_text(self.source))
        _check_label("strategy", self.strategy)
        if self.version is not None:
            _check_label("version", self.version)
        become("scope", member(Scope, self.scope, what="scope"))
        become("mode", member(LoadMode, self.mode, what="mode"))
        if self.pause_mode is not None:
            become("pause_mode", member(PauseMode, self.pause_mode, what="pause_mode"))
        if not isinstance(self.options, Mapping):
            raise ValueError(
                f"options is a {type(self.options).__name__}, wanted a mapping of what the "
                "strategy understands"
            )


def _check_label(what: str, given: object) -> None:
    """As a request's: every client reads it back. Raises: ValueError."""
    if not isinstance(given, str):
        raise ValueError(f"{what} is a {type(given).__name__}, wanted a text")
    if len(given) > MAX_LABEL_CHARACTERS:
        raise ValueError(
            f"{what} has {len(given)} characters, wanted at most {MAX_LABEL_CHARACTERS}"
        )
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{what} is {given!a:.80}, which has half a character in it, wanted Unicode"
        ) from None


def _source_text(source: object) -> str:
    text = os.fspath(source) if isinstance(source, os.PathLike) else source
    if not isinstance(text, str):
        raise ValueError(
            f"source is a {type(source).__name__}, wanted a text that the strategy understands, "
            "or a path"
        )
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightStamp:
    """Which weights are live. The four fields change together, at a commit; a relabel
    changes ``version`` alone.

    ``version`` is the client's opaque label; ``epoch`` counts commits, never
    repeats within a process, and is what caches and spans are keyed by.

    Raises: ValueError for a ``version`` that an ``Update`` could not have either.
    """

    version: str | None = None
    token_step: int | None = None
    update_count: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        if self.version is not None:
            _check_label("version", self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightCounts:
    """Requests inside the engine: ``holding_kv`` of the total own KV memory."""

    running: int = 0
    waiting: int = 0
    holding_kv: int = 0

    @property
    def total(self) -> int:
        """Running and waiting together."""
        return self.running + self.waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """How busy an engine is at one moment; counts of events run from the start on.

    ``running`` hold keys and values; ``waiting`` do not, and ``stalled`` of them wait
    for a client that does not read. ``kv_tokens_used`` is what running requests and
    cached prefixes hold together of ``kv_tokens_total``, in tokens; ``cached_tokens``
    is the part of the prefixes. A hit is a request that began with a cached prefix,
    ``cache_hit_tokens`` long. ``prefill_tokens`` ran through the model to start a
    text, ``generated_tokens`` came out of it. ``retractions`` lost their keys and
    values before their end, for want of memory or by a pause.
    """

    running: int = 0
    waiting: int = 0
    stalled: int = 0
    max_running: int = 0
    max_queued: int = 0
    kv_tokens_used: int = 0
    kv_tokens_total: int = 0
    cached_tokens: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_hit_tokens: int = 0
    prefill_tokens: int = 0
    generated_tokens: int = 0
    retractions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """What one successful update did and cost.

    ``paused_ms`` runs from the end of the last forward pass to the first one
    allowed again; under a client's own pause it is the update's share of it.
    ``elements_moved`` are those of the live model that were written, or, by a sparse commit,
    that are others now; ``bytes_applied`` is what was written.
    """

    stamp: WeightStamp
    tensors_applied: int
    bytes_applied: int
    flushed_cache: bool
    entries_cleared: int
    num_aborted_requests: int
    num_paused_requests: int
    load_mode: LoadMode
    staged_ms: float
    paused_ms: float
    elapsed_ms: float
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    commit_mode: CommitMode = CommitMode.FULL
    elements_moved: int = 0

    def __str__(self) -> str:
        how = self.load_mode if self.commit_mode is CommitMode.FULL else self.commit_mode
        return (
            f"{self.tensors_applied} tensors, {self.bytes_applied / 1e6:.0f} MB {how}, "
            f"staged {self.staged_ms:.0f} ms, paused {self.paused_ms:.0f} ms, "
            f"epoch {self.stamp.epoch}"
        )
