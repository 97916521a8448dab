"""From a request to bytes within reach: everything that happens while still serving.

Rule: nothing here touches the weights, so that whatever goes wrong here is
``UpdateRejected``, with the cause attached.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Protocol, TypeAlias, runtime_checkable

import anyio

from hotswap.errors import UpdateRejected
from hotswap.foreign import contained, is_ours, said, shown, words_of
from hotswap.missing import STRATEGIES, remedy
from hotswap.plugin_hooks import PreReadHook
from hotswap.plugin_loading import NAME
from hotswap.seams import LoadStrategy, Stage
from hotswap.types import Bucket, Manifest, Placement, Update
from hotswap.uninterrupted import on_worker_thread

__all__ = [
    "Buckets",
    "PreRead",
    "opened",
    "rejecting",
    "rejection",
    "run_pre_read",
    "strategy_named",
]

PreRead: TypeAlias = Callable[[str, str | None], Awaitable[None]]
"""Called with source and version before a source is read; raising rejects the update.

A plain function gets the time limit that a plug-in's hook has.
"""

RELEASE_S = 30.0
"""How long an update waits for its strategy to release what it holds."""

_log = logging.getLogger("hotswap.update")

_END = object()


@contextmanager
def rejecting(doing: str) -> Iterator[None]:
    """Turn whatever the body ends with into UpdateRejected that says what was done.

    A cancellation of the running task passes.
    """
    try:
        yield
    except UpdateRejected:
        raise
    except BaseException as error:
        # Whatever foreign code ends with, but for a cancellation that was meant for us.
        if is_ours(error):
            raise
        raise rejection(doing, error) from error


def rejection(doing: str, error: BaseException) -> UpdateRejected:
    """What ``error``, raised before the first write, means to the caller."""
    return UpdateRejected(
        f"{doing} failed with {said(error)}; nothing was written, "
        "put it right and send the update again"
    )


def strategy_named(name: str, strategies: Mapping[str, LoadStrategy]) -> LoadStrategy:
    """The strategy registered as ``name``.

    Raises: UpdateRejected naming the one that was meant, or the dist to install.
    """
    found = strategies.get(name)
    if found is None:
        have = ", ".join(sorted(strategies)) or "none"
        raise UpdateRejected(
            f"load strategy {name!r} is not installed (installed: {have}): "
            f"{_remedy(name, list(strategies))}"
        )
    return found


def _remedy(name: str, installed: Sequence[str]) -> str:
    # A name comes from a client, and the message is a command for a shell.
    if not NAME.fullmatch(name):
        return "that can be no strategy's name; send one that is installed"
    return remedy(name, installed=installed, own=STRATEGIES)


async def run_pre_read(hooks: Sequence[PreRead], update: Update) -> None:
    """Run every hook in turn, each within its time limit.

    Raises: UpdateRejected naming the hook that failed.
    """
    for hook in hooks:
        bound = hook if isinstance(hook, PreReadHook) else PreReadHook(name=_name(hook), call=hook)
        with rejecting(f"pre-read hook {bound.name}"):
            try:
                await bound(update.source, update.version)
            except UpdateRejected as error:
                if bound.name in words_of(error):
                    raise
                raise UpdateRejected(f"pre-read hook {bound.name}: {words_of(error)}") from error


@asynccontextmanager
async def opened(
    strategy: LoadStrategy, update: Update, placement: Placement
) -> AsyncIterator[Stage]:
    """Enter the strategy's stage; leave it whatever happens, cancelled or not.

    What the body raised is raised, whatever the strategy makes of it on its way out.
    Raises: UpdateRejected when entering fails, or leaving after a body that did not.
    """
    what = f"{words_of(update.source)!r} (strategy {update.strategy!r})"
    with rejecting(f"opening {what}"):
        context = _checked_context(strategy.open(update, placement))
    failure: BaseException | None = None
    # Entered before the strategy's own scopes and task groups, which it stays open
    # with, so that it may become their shield once they have to be left.
    with anyio.CancelScope() as guard:
        with rejecting(f"opening {what}"):
            stage = await context.__aenter__()
        try:
            with rejecting(f"opening {what}"):
                _check_stage(stage)
            yield stage
        except BaseException as error:
            failure = error
        guard.shield, guard.deadline = True, anyio.current_time() + RELEASE_S
        await _leave(context, failure, what)
    if guard.cancelled_caught:
        raise failure or UpdateRejected(f"releasing {what} took longer than {RELEASE_S:g} s")


def _checked_context(context: object) -> AbstractAsyncContextManager[Stage]:
    """What a strategy's ``open`` returned. Raises: TypeError for what cannot be entered."""
    if isinstance(context, AbstractAsyncContextManager):
        return context
    if inspect.iscoroutine(context):
        context.close()
    raise TypeError(
        f"open() returned a {type(context).__name__}, wanted an asynchronous context manager; put "
        "@contextlib.asynccontextmanager above it"
    )


def _check_stage(stage: Stage) -> None:
    manifest: object = stage.manifest
    if not isinstance(manifest, Manifest):
        raise TypeError(
            f"the manifest of its stage is a {type(manifest).__name__}, wanted a hotswap.Manifest; "
            "make it with Manifest.of(specs)"
        )


async def _leave(
    context: AbstractAsyncContextManager[Stage], failure: BaseException | None, what: str
) -> None:
    if failure is None:
        with rejecting(f"releasing {what}"):
            await context.__aexit__(None, None, None)
        return
    args = type(failure), failure, failure.__traceback__
    if isinstance(failure, Exception):
        try:
            with contained():
                await context.__aexit__(*args)
        except Exception:
            _log.exception("releasing %s failed, after the update itself had failed", what)
        raise failure
    # The strategy may be the one that cancelled us (a time limit, a failed task of its
    # own). Then it takes the cancellation back, and the update has only been rejected.
    with rejecting(f"holding {what}"):
        if await context.__aexit__(*args):
            raise UpdateRejected(f"{what} was given up by its strategy; send the update again")
    raise failure


@runtime_checkable
class Checked(Protocol):
    """A stage that knows which bytes it should have."""

    def check_before_writing(self) -> Iterable[None]:
        """Compare everything that ``buckets`` will deliver, some of it in each step; while it
        still serves, for an update that writes straight into live weights.

        Each step is taken on a worker thread, and none after a cancellation. Raises, while it is
        gone through: UpdateRejected for what is damaged.
        """
        ...


class Buckets:
    """The buckets of a stage, each made on a worker thread when it is asked for."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._iterator: Iterator[Bucket] | None = None
        self._ahead: list[Bucket | None] = []

    async def check(self) -> None:
        """Let a stage that is ``Checked`` look at everything, before anything is stopped for it.

        Raises: whatever it raises for what is not to be written.
        """
        if isinstance(self._stage, Checked):
            steps = iter(self._stage.check_before_writing())
            while await on_worker_thread(_took_a_step, steps):
                pass

    async def peek(self) -> None:
        """Have the next bucket ready. Raises: whatever the source raised."""
        self._ahead.append(await self.next())

    async def next(self) -> Bucket | None:
        """The next bucket; None after the last. Raises: whatever the source raised."""
        if self._ahead:
            return self._ahead.pop()
        return await on_worker_thread(self._next)

    def _next(self) -> Bucket | None:
        if self._iterator is None:
            self._iterator = iter(self._stage.buckets())
        return next(self._iterator, None)


def _took_a_step(steps: Iterator[None]) -> bool:
    return next(steps, _END) is not _END


def _name(hook: PreRead) -> str:
    return words_of(getattr(hook, "__qualname__", None) or shown(hook))
