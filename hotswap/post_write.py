"""The publisher's side of plug-ins: what runs between writing a version and announcing it.

Rule: a version whose hooks have not all returned is offered to nobody.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

import anyio

from hotswap.errors import UpdateRejected
from hotswap.foreign import shown, words_of
from hotswap.plugin_hooks import PostWriteHook

__all__ = ["PostWrite", "run_post_write", "run_post_write_from_thread"]

PostWrite: TypeAlias = Callable[[str, str | None], Awaitable[None]]
"""Called with directory and version once a version is written; raising keeps it back.

``Plugins.post_write`` has those of the plug-ins. A plain function gets the time limit that a
plug-in's hook has.
"""


async def run_post_write(
    hooks: Sequence[PostWrite], directory: str | os.PathLike[str], version: str | None
) -> None:
    """Run every hook in turn, each within its own time limit; announce the version afterwards.

    ``hooks`` are ``load_plugins().post_write``, in that order. The first one that fails is
    the last one that is called. Those before it have run, and may be called again for the
    same version. A cancelled caller cancels the hook that runs.

    Raises: UpdateRejected, or another HotswapError that a hook raised, naming the hook: keep the
    version back.
    """
    place = os.fspath(directory)
    for hook in hooks:
        bound = hook
        if not isinstance(bound, PostWriteHook):
            name = words_of(getattr(hook, "__qualname__", None) or shown(hook))
            bound = PostWriteHook(name=name, call=hook)
        try:
            await bound(place, version)
        except UpdateRejected as error:
            if type(error) is not UpdateRejected:
                raise  # it says more exactly what is wrong
            seen = words_of(error)
            if bound.name not in seen:
                seen = f"{bound.name}: post-write hook: {seen}"
            raise UpdateRejected(
                f"{seen}; {place} (version {version!r}) is written and was not announced: put it "
                "right, and run the hooks again or publish the next version"
            ) from error


def run_post_write_from_thread(
    hooks: Sequence[PostWrite], directory: str | os.PathLike[str], version: str | None
) -> None:
    """``run_post_write`` for a thread without an event loop, a trainer's for example. Blocks.

    Each call has an event loop of its own, on the calling thread.

    Raises: what ``run_post_write`` raises; RuntimeError on the thread of a running event loop,
    which it would hold up.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError(
            "run_post_write_from_thread was called on the thread of a running event loop, wanted "
            "a thread without one; await run_post_write there"
        )
    if hooks:
        anyio.run(partial(run_post_write, hooks, directory, version))
