"""What the routes talk to: one object on ``app.state``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import anyio
import torch
from starlette.requests import Request

from hotswap.attempt import UpdateNews
from hotswap.coverage import Coverage
from hotswap.errors import IllegalCommand
from hotswap.follow import FOLLOW, Follower
from hotswap.http.dialect import Dialect, dialect_of, generate_limit_s
from hotswap.http.errors import NotFound
from hotswap.http.event_stream import STALL_S
from hotswap.http.in_flight import InFlightRequests
from hotswap.http.observation import Observation
from hotswap.http.submissions import Submissions
from hotswap.plugins import Plugins
from hotswap.pulls import Puller
from hotswap.seams import Engine, Inspector
from hotswap.settings import Settings
from hotswap.state import Command, Machine
from hotswap.types import EngineLoad, PauseMode, Placement, Update, UpdateReport, WeightStamp
from hotswap.update_sessions import UpdateSessions
from hotswap.weights.snapshot import WeightSnapshot

__all__ = [
    "Admission",
    "Beating",
    "Commands",
    "Counts",
    "Describing",
    "Living",
    "Loaded",
    "Memory",
    "MovedMemory",
    "OnDevice",
    "Paused",
    "Served",
    "Writes",
    "caches_of",
    "device_uuid_of",
    "inspector_of",
    "load_of",
    "served",
]


class Admission(Protocol):
    """The door that generation requests come through."""

    async def enter(self) -> None:
        """Return when a request may be submitted. Raises: Paused, WeightsNotWhole."""
        ...


class Paused(Protocol):
    """What a pause did."""

    @property
    def mode(self) -> PauseMode:
        """The mode in effect."""
        ...

    @property
    def num_aborted(self) -> int:
        """Requests that it ended."""
        ...


class Writes(Protocol):
    """When live weights are being written."""

    async def closed(self) -> None:
        """Return when none is; read before the next ``await``. Raises: Busy."""
        ...


class Counts(Protocol):
    """What has happened since the start, in numbers."""

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Tables of counts."""
        ...

    def count_update(self, command: Command, strategy: str, outcome: str) -> None:
        """Count one update."""
        ...


class MovedMemory(Protocol):
    """What a release or a resumption of memory did."""

    @property
    def moved(self) -> frozenset[str]:
        """The tags that it was about, and that were not so already."""
        ...

    @property
    def asleep(self) -> frozenset[str]:
        """The tags that are released now."""
        ...

    @property
    def num_aborted(self) -> int:
        """Requests that it ended."""
        ...


class Memory(Protocol):
    """What the routes need to let memory go and take it again."""

    def sleep(
        self, tags: frozenset[str], *, pause_mode: PauseMode | None = None
    ) -> Awaitable[MovedMemory]:
        """Let the memory of ``tags`` go."""
        ...

    def wake(self, tags: frozenset[str]) -> Awaitable[MovedMemory]:
        """Take it again."""
        ...


class Commands(Protocol):
    """What the routes need of the controller."""

    @property
    def machine(self) -> Machine:
        """Facts and state."""
        ...

    @property
    def stamp(self) -> WeightStamp:
        """Which weights are live."""
        ...

    @property
    def last_update(self) -> UpdateReport | None:
        """The newest successful update."""
        ...

    @property
    def coverage(self) -> Coverage:
        """How far the chunks of a push have come."""
        ...

    @property
    def sessions(self) -> UpdateSessions:
        """Chunks that are to become one update."""
        ...

    @property
    def updates(self) -> Sequence[Mapping[str, object]]:
        """Updates that are not over."""
        ...

    @property
    def counters(self) -> Counts:
        """Commands and updates counted by outcome."""
        ...

    @property
    def admission(self) -> Admission:
        """Where generation requests wait or are refused."""
        ...

    @property
    def writes(self) -> Writes:
        """What readers of live weights wait for."""
        ...

    @property
    def memory(self) -> Memory:
        """Memory that is let go and taken again."""
        ...

    def observe_updates(self, observer: Callable[[UpdateNews], None]) -> None:
        """Call ``observer`` at every step of every update."""
        ...

    def not_ready_reasons(self) -> list[str]:
        """Why generation is not possible now; empty when it is."""
        ...

    def pause(self, mode: PauseMode) -> Awaitable[Paused]:
        """Stop forward passes."""
        ...

    def resume(self) -> Awaitable[None]:
        """Open the gate."""
        ...

    def flush(self) -> Awaitable[int]:
        """Drop cached prefixes; how many went."""
        ...

    def relabel(self, version: str, *, abort: bool = False) -> Awaitable[int]:
        """Another version for the same weights; how many requests were aborted."""
        ...

    def reset(self, *, skipped: Sequence[str] = ()) -> Awaitable[tuple[str, ...]]:
        """Overwrite the weights with noise; which."""
        ...

    def update(self, update: Update) -> Awaitable[UpdateReport]:
        """Change the weights."""
        ...


@runtime_checkable
class Describing(Protocol):
    """An engine that can say what model it runs."""

    def describe(self) -> Mapping[str, object]:
        """Fields for ``/model_info``."""
        ...


@runtime_checkable
class OnDevice(Protocol):
    """An engine that knows which device it runs on."""

    @property
    def device_uuid(self) -> str | None:
        """As CUDA spells it; None for a device without one."""
        ...


@runtime_checkable
class Living(Protocol):
    """An engine that knows whether its own thread still runs."""

    @property
    def alive(self) -> bool:
        """False once the thread that runs forward passes has ended."""
        ...


@runtime_checkable
class Beating(Protocol):
    """An engine that can say whether its own thread turns."""

    async def beat(self) -> None:
        """Return between two forward passes."""
        ...


@runtime_checkable
class Loaded(Protocol):
    """An engine that counts more than its requests."""

    @property
    def load(self) -> EngineLoad:
        """How busy it is now."""
        ...


def caches_of(engine: Engine) -> object:
    """Hits, misses and entries of the engine's prefix cache; None for one without."""
    return getattr(engine, "cache_stats", None)


def device_uuid_of(engine: Engine) -> str | None:
    """The UUID of the engine's device; None for an engine that does not say, or a CPU."""
    return engine.device_uuid if isinstance(engine, OnDevice) else None


def _one_thread() -> anyio.CapacityLimiter:
    # Encoding long texts must not take the cores, nor every worker thread; nor must scrapes.
    return anyio.CapacityLimiter(1)


@dataclass(slots=True, kw_only=True)
class Served:
    """Everything that a route needs, for one app.

    ``encoders`` bounds how many threads turn long texts into tokens, ``scrapers`` how many
    collect metrics, ``decoders`` how many pushed payloads are read at once. A client of a
    stream that reads nothing for ``stall_s`` counts as gone.
    One that waits for ``patience_s`` (0: for ever) is told that nothing came.
    """

    commands: Commands
    engine: Engine
    settings: Settings
    puller: Puller
    follower: Follower | None = None
    plugins: Plugins = field(default_factory=Plugins)
    placement: Placement = field(default_factory=Placement)
    requests: InFlightRequests = field(default_factory=InFlightRequests)
    submissions: Submissions = field(default_factory=Submissions)
    encoders: anyio.CapacityLimiter = field(default_factory=_one_thread)
    scrapers: anyio.CapacityLimiter = field(default_factory=_one_thread)
    decoders: anyio.CapacityLimiter = field(default_factory=_one_thread)
    snapshot: WeightSnapshot | None = None
    health_s: float = 20.0
    stall_s: float = STALL_S
    patience_s: float = field(init=False)
    dialect: Dialect = field(init=False)
    observation: Observation = field(init=False)
    _source: tuple[int, str] = field(init=False)

    def __post_init__(self) -> None:
        self.dialect = dialect_of(self.settings)
        self.patience_s = generate_limit_s(self.settings)
        self._source = (-1, self.settings.model or "")
        self.observation = Observation(self)
        if self.follower is not None:
            self.commands.observe_updates(self._note_followed)

    @property
    def model_path(self) -> str:
        """The directory that the live weights came from."""
        return self._source[1]

    def note_source(self, epoch: int, path: str) -> None:
        """Remember where the weights of ``epoch`` came from; the newest epoch wins."""
        self._source = max(self._source, (epoch, path))

    def _note_followed(self, news: UpdateNews) -> None:
        if news.report is not None and news.update.strategy == FOLLOW:
            self.note_source(news.report.stamp.epoch, news.update.source)

    def begin_shutdown(self) -> int:
        """Take no request any more and abort those in flight; how many. Idempotent."""
        if self.follower is not None:
            self.follower.stop()
        self.observation.begin_shutdown()
        return self.requests.close()

    def end_shutdown(self) -> None:
        """Let the readers of events end: nothing happens any more. Idempotent."""
        self.observation.events.close()

    @property
    def engine_alive(self) -> bool:
        """Whether forward passes are still possible at all."""
        return self.engine.alive if isinstance(self.engine, Living) else True


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeWeights:
    """Satisfies ``Inspector``: each read is of one set of weights, and never of half a commit.

    It waits for a commit to end. Raises: Busy when that takes too long; IllegalCommand while
    there are no weights to read.
    """

    engine: Inspector
    commands: Commands

    async def read_weight(self, name: str, rows: int) -> torch.Tensor:
        """See ``seams.Inspector``."""
        await self._readable()
        return await self.engine.read_weight(name, rows)

    async def checksums(self) -> dict[str, str]:
        """See ``seams.Inspector``."""
        await self._readable()
        return await self.engine.checksums()

    async def _readable(self) -> None:
        await self.commands.writes.closed()
        if not self.commands.machine.facts.weights.resident:
            raise IllegalCommand(
                "the memory of the weights is released, so there are none to look at; send "
                '/resume_memory_occupation with the tag "weights", and a full update'
            )


def inspector_of(serving: Served) -> Inspector:
    """The engine, if it shows its weights. Raises: NotFound."""
    if not isinstance(serving.engine, Inspector):
        raise NotFound("this server's engine does not show its weights")
    return WholeWeights(engine=serving.engine, commands=serving.commands)


def load_of(serving: Served) -> EngineLoad:
    """How busy the engine is; zeros for what it does not count."""
    return serving.engine.load if isinstance(serving.engine, Loaded) else EngineLoad()


def served(request: Request) -> Served:
    """The :class:`Served` of the app that ``request`` came to."""
    found: Served = request.app.state.served
    return found
