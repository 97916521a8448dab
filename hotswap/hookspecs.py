"""The hooks that a plug-in may implement.

A plug-in is a module (or any object) that an entry point in the group ``hotswap``
names. It states ``hotswap_api_version = 1``; every function in it whose name begins
with ``hotswap_`` is an implementation of the hook of that name, and may take fewer
of the arguments than the hook has. It is refused at load, and hotswap goes on
without it, when a function is not one of these hooks, is ``def`` where the hook is
``async def`` (or the reverse), raises, or returns something else than the hook says.

What a plug-in may rely on, and for how long: the versions from ``OLDEST_API_VERSION``
to ``API_VERSION`` are understood. An addition (a hook, an argument, a field) raises
``API_VERSION`` alone, so that plug-ins that need it say so and older ones go on. What
could stop a plug-in from working raises ``OLDEST_API_VERSION`` past it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pluggy
from prometheus_client.registry import Collector
from starlette.routing import BaseRoute

from hotswap.options import Option
from hotswap.seams import Engine, LoadStrategy
from hotswap.state import Change

__all__ = [
    "API_VERSION",
    "CONTRACTS",
    "GROUP",
    "OLDEST_API_VERSION",
    "TIMEOUTS_S",
    "EngineFactory",
    "HookContract",
    "Hooks",
    "StrategyFactory",
]

API_VERSION = 1
"""The newest version of the plug-in API that this hotswap understands."""

OLDEST_API_VERSION = 1
"""The oldest one: a plug-in that was written for it still works."""

GROUP = "hotswap"
"""The entry-point group, and the name of the hooks' project for pluggy."""

StrategyFactory: TypeAlias = Callable[[Mapping[str, object]], LoadStrategy]
"""Makes a strategy, once at the start, from the values of all options by their names.

The options are the server's own (``model``, ``device``, ``load-mode``, ..., the keys left
out) and those of every plug-in. What it raises stops the start, with its message.
"""

EngineFactory: TypeAlias = Callable[[Mapping[str, object]], AbstractAsyncContextManager[Engine]]
"""Makes an engine that runs while the context is open, from the values of all options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookContract:
    """When a hook is called, on which thread, for how long, and what raising does."""

    called: str
    thread: str
    raising: str
    timeout_s: float | None = None


_AT_LOAD = HookContract(
    called="once, at load", thread="main thread, no event loop runs", raising="refuses the plug-in"
)

CONTRACTS: Mapping[str, HookContract] = {
    "hotswap_strategies": _AT_LOAD,
    "hotswap_engines": _AT_LOAD,
    "hotswap_options": _AT_LOAD,
    "hotswap_routes": _AT_LOAD,
    "hotswap_metrics": _AT_LOAD,
    "hotswap_pre_read": HookContract(
        called="before each update is staged, and before each pull of a published version looks "
        "at its source, while the server serves",
        thread="event loop",
        timeout_s=60.0,
        raising="rejects the update or the pull",
    ),
    "hotswap_post_write": HookContract(
        called="on a publisher, once a version is written and before it is announced",
        thread="the publisher's event loop, or one of the call's own",
        timeout_s=60.0,
        raising="stops the announcement",
    ),
    "hotswap_changed": HookContract(
        called="after every change of the state machine's facts, in order",
        thread="event loop",
        raising="is logged and changes nothing",
    ),
}
"""What holds for each hook besides its signature; `docs/reference/hooks.md` says the same."""

TIMEOUTS_S: Mapping[str, float] = {
    name: contract.timeout_s
    for name, contract in CONTRACTS.items()
    if contract.timeout_s is not None
}
"""How long each async hook may take, for each plug-in."""

_spec = pluggy.HookspecMarker(GROUP)


class Hooks(Protocol):
    """Every hook. A plug-in implements the ones that it needs, as plain functions."""

    @_spec
    def hotswap_strategies(self) -> Mapping[str, StrategyFactory]:
        """Load strategies by the name that ``Update.strategy`` asks for.

        Called once at load. The dist ``hotswap-rsync`` brings the strategy ``rsync``: where it
        is installed, no other plug-in may. Of any other two with the same strategy the one
        whose dist sorts later is refused.
        """

    @_spec
    def hotswap_engines(self) -> Mapping[str, EngineFactory]:
        """Engines by name, for servers that should not run the embedded one.

        Called once at load. ``hotswap serve --engine NAME`` asks for one; the dist
        ``hotswap-transformers`` brings ``transformers``. The boot version reaches it as a
        ``commit`` without a write. ``embedded`` is hotswap's own.
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
        needs of the server is in ``request.app.state.served``. A path of hotswap's own
        or of another plug-in is refused.
        """

    @_spec
    def hotswap_metrics(self) -> Sequence[Collector]:
        """What ``/metrics`` shows besides hotswap's own. Called once at load.

        An instrument of ``prometheus_client`` made with ``registry=None`` is a collector.
        It is called on a worker thread at each scrape; one that raises is left out. Of
        two metrics with one name the server's own, or the earlier plug-in's, is shown.
        """

    @_spec
    async def hotswap_pre_read(
        self, source: str, version: str | None, options: Mapping[str, object]
    ) -> None:
        """Make ``source`` readable before it is read, on a shared filesystem for example.

        Called on the event loop before each update is staged, while the server serves;
        block on a thread only. Raising, or taking longer than 60 s, rejects the update.
        Before a pull ``source`` is the directory of published versions and ``version`` the
        target's number, once a pull, under its lock. ``options`` has the values of all
        options by their names.
        """

    @_spec
    async def hotswap_post_write(self, directory: str, version: str | None) -> None:
        """Make ``directory`` visible to readers after a publisher has written a version.

        Called on the publisher's event loop, or on one that is there for this call alone, so
        that nothing may be kept that belongs to a loop. Raising, or taking longer than 60 s,
        stops the announcement. It may be called again for the same version.
        """

    @_spec
    def hotswap_changed(self, change: Change) -> None:
        """See every change of the state machine's facts, in order.

        Called on the event loop, so it must not block. What it raises is logged and
        changes nothing.
        """
