"""Hooks that run while the server does: bound to their plug-in, bounded in time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import anyio

from hotswap.errors import HotswapError, UpdateRejected
from hotswap.foreign import contained, said
from hotswap.hookspecs import TIMEOUTS_S
from hotswap.state import Change
from hotswap.uninterrupted import uninterrupted

__all__ = ["ChangedHook", "PostWriteHook", "PreReadHook", "with_options"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreReadHook:
    """``hotswap_pre_read`` of the plug-in ``name``.

    ``call`` takes source and version, and ``options`` unless these are None.
    """

    name: str
    call: Callable[..., Awaitable[None]]
    timeout_s: float = TIMEOUTS_S["hotswap_pre_read"]
    options: Mapping[str, object] | None = None

    async def __call__(self, source: str, version: str | None) -> None:
        """Wait until ``source`` may be read.

        Raises: UpdateRejected when the hook fails or takes longer than ``timeout_s``.
        """
        given = (source, version) if self.options is None else (source, version, self.options)
        await _bounded(partial(self.call, *given), f"{self.name}: pre-read hook", self.timeout_s)


def with_options(
    hooks: Iterable[PreReadHook], values: Mapping[str, object]
) -> tuple[PreReadHook, ...]:
    """``hooks``, those of plug-ins with the ``values`` of all options by their names."""
    return tuple(hook if hook.options is None else replace(hook, options=values) for hook in hooks)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostWriteHook:
    """``hotswap_post_write`` of the plug-in ``name``."""

    name: str
    call: Callable[[str, str | None], Awaitable[None]]
    timeout_s: float = TIMEOUTS_S["hotswap_post_write"]

    async def __call__(self, directory: str, version: str | None) -> None:
        """Wait until ``directory`` is where its readers look.

        Raises: UpdateRejected when the hook fails or takes longer than ``timeout_s``.
        """
        call = partial(self.call, directory, version)
        await _bounded(call, f"{self.name}: post-write hook", self.timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedHook:
    """``hotswap_changed`` of the plug-in ``name``."""

    name: str
    call: Callable[[Change], None]

    def __call__(self, change: Change) -> None:
        """Show ``change`` to the plug-in. Never raises: an observer decides nothing."""
        try:
            self.call(change)
        except BaseException:
            # There is no await in it: whatever it is, it is the plug-in's own.
            _log.exception("%s: hotswap_changed failed on %s", self.name, change)


async def _bounded(call: Callable[[], Awaitable[None]], what: str, timeout_s: float) -> None:
    limit = anyio.CancelScope(deadline=anyio.current_time() + timeout_s)
    try:
        await _in_own_task(call, limit)
    except HotswapError:
        raise
    except Exception as error:
        raise UpdateRejected(f"{what} failed: {said(error)}") from error
    if limit.cancelled_caught:
        raise UpdateRejected(
            f"{what} took longer than {timeout_s:g} s; see what it waits for, then try again"
        )


async def _in_own_task(call: Callable[[], Awaitable[None]], scope: anyio.CancelScope) -> None:
    """``await call()`` in ``scope``, where it can neither cancel the task that waits for it, nor
    close its coroutines: a task that ends with a GeneratorExit does that to whoever awaits it.

    Raises: what it raises; a RuntimeError in the place of what is no Exception.
    """

    async def run() -> None:
        # sys.exit() of a plug-in would end the server.
        with scope, contained():
            await call()

    task = asyncio.get_running_loop().create_task(run())
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        scope.cancel()
        await uninterrupted(_over(task))
        raise
    if task.cancelled():
        raise RuntimeError("it cancelled the task that it runs in")
    task.result()


async def _over(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])
    # Asked for, so that asyncio does not say that nobody did.
    _ = task.cancelled() or task.exception()
