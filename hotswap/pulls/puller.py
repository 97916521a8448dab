"""Pulls while serving: on threads of their own, one after another, whoever stops waiting.

Rules:

* A pull takes no entry in the queue of commands and touches no live weights.
* Once begun it runs to its end: a client that goes away leaves a whole version behind.
* Version 0 is what the server was started with, as it was recorded then.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import anyio
from anyio import from_thread, to_thread
from anyio.lowlevel import checkpoint_if_cancelled

from hotswap.command_queue import OneAtATime
from hotswap.niceness import give_way
from hotswap.plugin_hooks import PreReadHook, with_options
from hotswap.pre_read import operator_hook, pull_pre_read
from hotswap.pulls.compactor import Compactor
from hotswap.pulls.logs import LogSizes
from hotswap.pulls.news import PullNews, outcome_of
from hotswap.pulls.pace import Pace
from hotswap.sparse.cache import PATCHES
from hotswap.stream import Keep, OutsideRoots, PreRead, Progress, PullMode, PullReport, pull
from hotswap.stream.applied import is_applied
from hotswap.stream.errors import BaseChanged, StreamError
from hotswap.stream.look import FirstLook
from hotswap.stream.object_store import ObjectStore
from hotswap.stream.objects import Objects
from hotswap.stream.place import Place, place_of
from hotswap.stream.places import Places
from hotswap.stream.recorded import RecordedBase
from hotswap.stream.state import Reserved
from hotswap.uninterrupted import uninterrupted
from hotswap.weights.roots import Allowed, roots_of

__all__ = ["Puller", "on_the_loop"]

_log = logging.getLogger("hotswap.pull")

WAIT_S = 600.0
"""How long a pull waits for others, and for updates that read the directory."""

_TELL_EVERY_S = 1.0
_MAX_THREADS = 8


@dataclass(frozen=True, slots=True)
class _Key:
    local: str
    source: str
    target: int
    check: bool


class Puller:
    """Pulls for one server. Event-loop thread only; ``observe`` is for events and metrics.

    ``pre_read`` is called on a thread that is not of anyio's: an async hook gets back to the
    event loop by :func:`on_the_loop`, as ``pull_pre_read(hooks, run=on_the_loop)``.
    """

    def __init__(
        self,
        base: RecordedBase | None,
        *,
        local_allowed: Allowed | None = None,
        source_allowed: Allowed | None = None,
        threads: int | None = None,
        pre_read: PreRead | None = None,
        wait_s: float = WAIT_S,
        keep: Keep = Keep.FILES,
    ) -> None:
        self.base = base
        self._local_allowed = local_allowed
        self._source_allowed = source_allowed
        self._threads = threads or max(1, min(_MAX_THREADS, (os.cpu_count() or 1) // 2))
        self._pre_read = pre_read
        self._wait_s = wait_s
        self._keep = keep
        self.logs: LogSizes = LogSizes()
        self._compactor = Compactor(self.logs, threads=self._threads, patches=PATCHES)
        self._turns = OneAtATime(wait_s=wait_s, doing="pull", still="running")
        # Not those of updates: a pull that waits must not keep an update from its thread.
        self._limiter = anyio.CapacityLimiter(1)
        self._observers: list[Callable[[PullNews], None]] = []
        self._numbers = itertools.count(1)
        self._begun, self._newest = 0, 0
        self._latest: tuple[_Key, int, PullReport] | None = None
        self._stopping = False
        self._stores: dict[str, ObjectStore] = {}

    @classmethod
    def from_options(
        cls, values: Mapping[str, object], *, hooks: Sequence[PreReadHook] = ()
    ) -> Self:
        """From the values of a server's options by name; the base is recorded now.

        ``hooks`` are the plug-ins' pre-read hooks, which run after the operator's own.
        Raises: ValueError for a root that is no directory, a hook that cannot be imported.
        """
        model, threads = values.get("model"), values.get("pull-threads")
        kept_mb = values.get("patch-cache-mb")
        if isinstance(kept_mb, int):
            # One for the process: what pulls leave is for all of its updates.
            PATCHES.limit_bytes = kept_mb * 2**20
        own = values.get("custom-pull-weights-pre-read-hook")
        before = () if own is None else (operator_hook(str(own)),)
        looks = pull_pre_read((*before, *with_options(hooks, values)), run=on_the_loop)
        return cls(
            None if model is None else RecordedBase.of(str(model)),
            local_allowed=roots_of(values, "local-root"),
            source_allowed=roots_of(values, "source-root", urls=True),
            threads=threads if isinstance(threads, int) else None,
            pre_read=looks,
            keep=Keep(str(values.get("local-checkpoint", Keep.FILES))),
        )

    def __repr__(self) -> str:
        base = None if self.base is None else self.base.path
        return f"<Puller on {base}, {self._begun} pulls, {self._threads} threads>"

    def observe(self, observer: Callable[[PullNews], None]) -> None:
        """Call ``observer`` on the event loop at every step of every pull."""
        self._observers.append(observer)

    def stop(self) -> None:
        """Let a pull that runs end at its next step: the next one finishes what it has begun."""
        self._stopping = True
        self._compactor.stop(wait_s=0.0)

    def relay_all(self, strategies: Iterable[object]) -> None:
        """Let the observers hear of what ``strategies`` pull as well, numbered with one's own.

        Those are meant that have a ``Puller`` and show it as ``puller``.
        """
        for strategy in strategies:
            other = getattr(strategy, "puller", None)
            if isinstance(other, Puller):
                other._numbers = self._numbers
                other._share(self.logs)
                other.observe(self._tell)

    def _share(self, logs: LogSizes) -> None:
        """Let ``logs`` hear of one's own as well."""
        self.logs = logs
        self._compactor = Compactor(logs, threads=self._threads, patches=PATCHES)

    def holds(
        self, local: Path, source: Path | Objects, target: int, *, looks: bool, hooks: bool = False
    ) -> bool:
        """Whether ``local`` is where ``pull`` would bring it. Blocks; any thread.

        Only while nobody pulls; nothing is waited for. What ``local`` says of itself decides,
        with ``looks`` also whether the source still has that version; before that look the
        pre-read hooks run, with ``hooks`` (then on a worker thread of the event loop's). What
        cannot be read is not there: a pull says why. Raises: StreamError.
        """
        base = self._recorded()
        places = self._places(base, local, self._source(source, target))
        places.check(target)
        first = FirstLook(self._pre_read if hooks else None, source, target)
        try:
            return is_applied(places, target, base_digest=base.digest, looks=looks, first=first)
        except OSError:
            return False

    async def pull(
        self, local: str, source: str, target: int, *, check: bool = False
    ) -> PullReport:
        """Bring ``local`` to version ``target`` of ``source``; ``check`` as of ``stream.pull``.

        One that waits for another of the same four takes its result. Cancelled while it
        waits it does nothing; cancelled later it ends first. ``source`` may be a URL below a
        root that is one. Raises: StreamError, Busy.
        """
        self._source(source, target)  # before anybody hears of a URL that brings a password
        self._begun, self._newest = self._begun + 1, next(self._numbers)
        key = _Key(local, source, target, check)
        news = PullNews(number=self._newest, local=local, source=source, target=target)
        began = time.perf_counter()
        self._tell(news)
        try:
            report = await self._in_turn(key, news)
        except BaseException as error:
            cancelled = not isinstance(error, Exception)
            outcome = "cancelled" if cancelled else outcome_of(error)
            self._tell(replace(news, outcome=outcome, error=error))
            raise
        elapsed_s = time.perf_counter() - began
        self._tell(replace(news, outcome="done", report=report, elapsed_s=elapsed_s))
        return report

    async def _in_turn(self, key: _Key, news: PullNews) -> PullReport:
        async with self._turns.turn():
            if self._latest is not None and self._latest[:1] == (key,):
                _, newest_then, report = self._latest
                if news.number <= newest_then:
                    return replace(
                        report,
                        mode=PullMode.NOOP,
                        start=report.version,
                        versions=(),
                        read_bytes=0,
                        written_bytes=0,
                        seconds={},
                    )
            work = partial(self._pull, key, self._told_from_threads(news))
            _loop.set(asyncio.get_running_loop())
            report = await uninterrupted(to_thread.run_sync(_yielding, work, limiter=self._limiter))
            self._latest = key, self._newest, report
        await checkpoint_if_cancelled()
        return report

    def _pull(self, key: _Key, progress: Callable[[Progress], None]) -> PullReport:
        base, local = self._recorded(), Path(key.local)
        if self._local_allowed is None:
            _refuse_strangers(local)
        report = pull(
            local,
            self._source(key.source, key.target),
            key.target,
            base_dir=base.path,
            base_digest=base.digest,
            local_allowed=self._local_allowed,
            source_allowed=self._source_allowed,
            threads=self._threads,
            lock_timeout_s=self._wait_s,
            progress=progress,
            pre_read=self._pre_read,
            give_way=True,
            patches=PATCHES,
            keep=self._keep,
            check=key.check,
        )
        self._see_to_log(local)
        return report

    def _see_to_log(self, local: Path) -> None:
        """Whatever comes of it: the pull is through."""
        try:
            size = self.logs.look(local)
            if size.versions and self._keep is Keep.LOG:
                self._compactor.look(local, allowed=self._local_allowed)
        except OSError as error:
            _log.warning("%s: its log cannot be looked at: %s", local, error)

    def _source(self, source: str | Path | Objects, target: int) -> Place:
        """What ``source`` means; its store is connected once, and not for each pull.

        Raises: StreamError for a URL where none was allowed: it is the server that asks there,
        with its own credentials, for whoever can reach it.
        """
        place = place_of(source)
        if target and isinstance(place, Objects) and self._source_allowed is None:
            raise OutsideRoots(
                f"source_dir {place} is a URL, and this server pulls from directories only; start "
                f"it with --source-root {place}, or a URL above it"
            )
        return place.through(self._stores) if isinstance(place, Objects) else place

    def _places(self, base: RecordedBase, local: Path, source: Place) -> Places:
        return Places(
            local=local,
            source=source,
            base=base.path,
            local_allowed=self._local_allowed,
            source_allowed=self._source_allowed,
        )

    def _recorded(self) -> RecordedBase:
        if self.base is None:
            raise BaseChanged(
                "this server was started without a model directory, and version 0 of a stream "
                "is what is in it; start it with one"
            )
        self.base.check()
        return self.base

    def _told_from_threads(self, news: PullNews) -> Callable[[Progress], None]:
        """What a pull calls: once a second, and at each new phase, the observers hear of it."""
        loop, pace = asyncio.get_running_loop(), Pace()
        last = [("", 0.0)]

        def progress(step: Progress) -> None:
            if self._stopping:
                raise StreamError("the pull was given up, for its server ends; pull again")
            pace.rest()
            now, (phase, told) = time.monotonic(), last[0]
            if step.phase == phase and now - told < _TELL_EVERY_S:
                return
            last[0] = (step.phase, now)
            loop.call_soon_threadsafe(self._tell, replace(news, progress=step))

        return progress

    def _tell(self, news: PullNews) -> None:
        for observer in self._observers:
            try:
                observer(news)
            except BaseException:
                _log.exception("an observer of pulls failed on %s", news.phase)


def _yielding(work: Callable[[], PullReport]) -> PullReport:
    """``work`` on a thread that is nicer than those of the server, as are those that it starts.

    No thread can take that back: it has this one pull and ends.
    """
    with ThreadPoolExecutor(1, "hotswap-pull-lead", initializer=give_way) as lead:
        return lead.submit(copy_context().run, work).result()


_loop: ContextVar[asyncio.AbstractEventLoop] = ContextVar("loop")
"""The event loop that the threads of a pull are of."""


def on_the_loop(work: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
    """Run ``work`` on the event loop of this worker thread, or pull, and wait for it.

    As ``anyio.from_thread.run``, which knows no thread of a pull, and complains when the server
    ends meanwhile.
    """
    loop = _loop.get(None) or from_thread.run_sync(asyncio.get_running_loop)
    asyncio.run_coroutine_threadsafe(work(*args), loop).result()


def _refuse_strangers(local: Path) -> None:
    """Without roots any client could otherwise have files of any directory replaced.

    Raises: OutsideRoots for a directory with files in it that no pull ever wrote to.
    """
    try:
        names: Iterable[str] = os.listdir(local)
    except (OSError, ValueError):
        return
    strangers = sorted(set(names) - {Reserved(local).home.name})
    paths = Reserved(local)
    if strangers and not (paths.state.exists() or paths.own.exists()):
        raise OutsideRoots(
            f"{local}: holds {strangers[0]!r:.200}, which no pull wrote; choose a directory that "
            "is empty or not there, or start the server with a --local-root around this one"
        )
