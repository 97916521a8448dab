"""The hooks that a plug-in may implement.

A plug-in is a module (or any object) that an entry point in the group ``hotswap``
names. It states ``hotswap_api_version = 1``; every function in it whose name begins
with ``hotswap_`` is an implementation of the hook of that name, and may take fewer
of the arguments than the hook has. It is refused at load, and hotswap goes on
without it, when a function is not one of these hooks, is ``def`` where the hook is
``async def`` (or the reverse), or returns something else than the hook says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

import pluggy
from starlette.routing import BaseRoute

from hotswap.options import Option
from hotswap.seams import Engine, LoadStrategy
from hotswap.state import Change

__all__ = [
    "API_VERSION",
    "GROUP",
    "TIMEOUTS_S",
    "EngineFactory",
    "Hooks",
    "StrategyFactory",
]

API_VERSION = 1
"""Changes when a plug-in written for the version before could stop working."""

GROUP = "hotswap"
"""The entry-point group, and the name of the hooks' project for pluggy."""

StrategyFactory: TypeAlias = Callable[[Mapping[str, object]], LoadStrategy]
"""Makes a strategy, once at the start, from the values of all options by their names."""

EngineFactory: TypeAlias = Callable[[Mapping[str, object]], AbstractAsyncContextManager[Engine]]
"""Makes an engine that runs while the context is open, from the values of all options."""

TIMEOUTS_S: Mapping[str, float] = {"hotswap_pre_read": 60.0, "hotswap_post_write": 60.0}
"""How long each async hook may take, for each plug-in."""

_spec = pluggy.HookspecMarker(GROUP)


class Hooks(Protocol):
    """Every hook. A plug-in implements the ones that it needs, as plain functions."""

    @_spec
    def hotswap_strategies(self) -> Mapping[str, StrategyFactory]:
        """Load strategies by the name that ``Update.strategy`` asks for.

        Called once at load. The dist ``hotswap-rsync`` brings the strategy ``rsync``. Of
        two plug-ins with the same strategy the one whose dist sorts later is refused.
        """

    @_spec
    def hotswap_engines(self) -> Mapping[str, EngineFactory]:
        """Engines by name, for servers that should not run the embedded one.

        Called once at load.
        """

    @_spec
    def hotswap_options(self) -> Sequence[Option]:
        """Command-line flags with their ``HOTSWAP_*`` variables.

        Called once at load; the parsed values go to the factories of the other hooks.
        """

    @_spec
    def hotswap_routes(self) -> Sequence[BaseRoute]:
        """Routes for the HTTP app, each a ``hotswap.http.KindedRoute``. Called once at load.

        The kind decides whether ``--allow-weight-update`` is needed. What an endpoint
        needs of the server is in ``request.app.state.served``.
        """

    @_spec
    async def hotswap_pre_read(self, source: str, version: str | None) -> None:
        """Make ``source`` readable before it is read, on a shared filesystem for example.

        Called on the event loop before each update is staged, while the server serves;
        block on a thread only. Raising, or taking longer than 60 s, rejects the update.
        """

    @_spec
    async def hotswap_post_write(self, directory: str, version: str | None) -> None:
        """Make ``directory`` visible to readers after a publisher has written a version.

        Called on the publisher's event loop, within 60 s, before the version is announced.
        """

    @_spec
    def hotswap_changed(self, change: Change) -> None:
        """See every change of the state machine's facts, in order.

        Called on the event loop, so it must not block. What it raises is logged and
        changes nothing.
        """
