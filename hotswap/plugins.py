"""Finding plug-ins, checking them, and the frozen value that the rest of hotswap uses.

Rules:

* A plug-in is taken whole or refused whole; a refused one costs nobody else anything.
* The strategy or engine ``disk`` is that of the dist ``hotswap-disk`` wherever it is installed,
  whatever else brings one: nobody takes a name by sorting first.
* Plug-ins are looked at in the order of their dists' names, so that any other clash ends the
  same way on every machine: the later one is refused.
* Nothing else in hotswap imports a plug-in, or knows one by name but to say what to install.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import cast

from prometheus_client.registry import Collector
from starlette.routing import BaseRoute

from hotswap.errors import PluginError
from hotswap.foreign import said, words_of
from hotswap.hookspecs import GROUP, EngineFactory, StrategyFactory
from hotswap.missing import ENGINES, STRATEGIES, remedy
from hotswap.options import Option
from hotswap.plugin_hooks import ChangedHook, PostWriteHook, PreReadHook
from hotswap.plugin_loading import NAME, Contribution, Finder, dist_of
from hotswap.plugin_scan import installed_entry_points
from hotswap.seams import Engine, LoadStrategy
from hotswap.wire.strategy import PUSHED

__all__ = [
    "EMBEDDED",
    "LoadedPlugin",
    "Plugins",
    "Refusal",
    "load_plugins",
    "missing_strategy_message",
    "resolve_engine",
    "resolve_strategies",
]

EMBEDDED = "embedded"
"""The name of hotswap's own engine, which no plug-in can take."""

_log = logging.getLogger(__name__)
_OWN: Mapping[str, Sequence[str]] = {"load strategy": STRATEGIES, "engine": ENGINES}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPlugin:
    """One plug-in that is in use, for people to read."""

    name: str
    version: str
    module: str
    hooks: tuple[str, ...]
    strategies: tuple[str, ...]
    engines: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()

    @property
    def brings(self) -> str:
        """In one line: what it adds to a server, else which hooks it has."""
        lists = {
            "strategies": self.strategies,
            "engines": self.engines,
            "flags": self.flags,
            "routes": self.routes,
        }
        added = [f"{kind}: {', '.join(names)}" for kind, names in lists.items() if names]
        return "; ".join(added or [f"hooks: {', '.join(self.hooks) or 'none'}"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One plug-in that is not in use, and why."""

    name: str
    version: str
    module: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.module}): {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugins:
    """Everything that the plug-ins bring. The empty value is a server without any."""

    strategies: Mapping[str, StrategyFactory] = field(default_factory=dict)
    engines: Mapping[str, EngineFactory] = field(default_factory=dict)
    options: tuple[Option, ...] = ()
    routes: tuple[BaseRoute, ...] = ()
    metrics: tuple[Collector, ...] = ()
    pre_read: tuple[PreReadHook, ...] = ()
    post_write: tuple[PostWriteHook, ...] = ()
    changed: tuple[ChangedHook, ...] = ()
    dists: tuple[LoadedPlugin, ...] = ()
    refusals: tuple[Refusal, ...] = ()


def load_plugins(
    *,
    reserved_options: Collection[str] = (),
    reserved_routes: Collection[str] = (),
    found: Iterable[EntryPoint] | None = None,
) -> Plugins:
    """Import and check every installed plug-in. Never raises for a bad one.

    ``reserved_options`` are the names of the server's own options, ``reserved_routes``
    the paths of its own routes. ``found`` replaces the installed entry points of the
    group ``hotswap``, for embedders.
    """
    finder = Finder()
    taken: list[Contribution] = []
    refusals: list[Refusal] = []
    if found is None:
        found, broken = installed_entry_points(GROUP)
        refusals += [
            Refusal(name=dist.name, version=dist.version, module=dist.where, reason=dist.reason)
            for dist in broken
        ]
    found = sorted(found, key=_order)
    installed = [*(refusal.name for refusal in refusals), *(dist_of(one)[0] for one in found)]
    own = _Own(
        options=reserved_options,
        routes=reserved_routes,
        installed=frozenset(map(_as_a_name, installed)),
    )
    for entry_point in found:
        try:
            contribution = finder.load(entry_point)
            _check_clashes(contribution, taken, own)
        except PluginError as error:
            refusals.append(_refusal(entry_point, error))
        else:
            taken.append(contribution)
    for refusal in refusals:
        _log.warning("plug-in refused: %s", refusal)
    return _combine(taken, refusals)


def resolve_strategies(
    plugins: Plugins, option_values: Mapping[str, object]
) -> dict[str, LoadStrategy]:
    """Make every strategy from the option values (see ``options.option_values``).

    Raises: PluginError naming the strategy whose factory refused the values or made
    something else than a strategy.
    """
    return {
        name: _make_strategy(name, factory, option_values)
        for name, factory in plugins.strategies.items()
    }


def resolve_engine(
    plugins: Plugins, name: str, option_values: Mapping[str, object]
) -> AbstractAsyncContextManager[Engine]:
    """The engine ``name`` of a plug-in, not running yet, made from the option values.

    Raises: PluginError naming the dist to install when no plug-in brings it, or the
    engine whose factory refused the values or made something else.
    """
    factory = plugins.engines.get(name)
    if factory is None:
        known = [EMBEDDED, *plugins.engines]
        raise PluginError(_missing_message("engine", name, known, plugins.refusals))
    try:
        engine = factory(option_values)
    except BaseException as error:
        raise _cannot_start(f"engine {name!r}", error) from error
    if not isinstance(engine, AbstractAsyncContextManager):
        raise PluginError(
            f"engine {name!r}: its factory made {_what(engine)}, wanted an "
            "asynchronous context manager that runs the engine"
        )
    return engine


def missing_strategy_message(name: str, plugins: Plugins) -> str:
    """What to do about a strategy that no plug-in in use brings."""
    return _missing_message("load strategy", name, plugins.strategies, plugins.refusals)


def _missing_message(
    kind: str, name: str, known: Iterable[str], refusals: Iterable[Refusal]
) -> str:
    dist, known = f"hotswap-{name}", list(known)
    seen = f"{kind} {name!r} is not installed (installed: {_listed(known)})"
    for refusal in refusals:
        if refusal.name == dist:
            return f"{seen}: {dist} is, but was refused at load: {refusal.reason}"
    if not NAME.fullmatch(name):
        return f"{seen}, and its name is none that a plug-in could have"
    return f"{seen}: {remedy(name, installed=known, own=_OWN[kind])}"


def _make_strategy(
    name: str, factory: StrategyFactory, option_values: Mapping[str, object]
) -> LoadStrategy:
    try:
        strategy: object = factory(option_values)
        fits = callable(getattr(strategy, "open", None)) and not isinstance(strategy, type)
    except BaseException as error:
        raise _cannot_start(f"load strategy {name!r}", error) from error
    if not fits:
        raise PluginError(
            f"load strategy {name!r}: its factory made {_what(strategy)}, wanted an "
            "object with open(update, placement)"
        )
    return cast(LoadStrategy, strategy)


def _cannot_start(what: str, error: BaseException) -> PluginError:
    """What a factory's refusal of its values, which is for people, comes to."""
    reason = words_of(error) if isinstance(error, Exception) else ""
    return PluginError(f"{what} cannot start: {reason or said(error)}")


def _what(made: object) -> str:
    if isinstance(made, type):
        return f"the class {made.__name__}, and no object of it"
    return f"a {type(made).__name__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Own:
    """Names that the server itself has, and the dists that are there, whose names are theirs."""

    options: Collection[str]
    routes: Collection[str]
    installed: Collection[str]

    @property
    def flags(self) -> frozenset[str]:
        """Both forms of every option's flag: argparse knows no difference."""
        names = (*self.options, "help")
        return frozenset(f"--{prefix}{name}" for name in names for prefix in ("", "no-"))


def _check_clashes(new: Contribution, taken: Iterable[Contribution], own: _Own) -> None:
    _refuse_shared("flag", new.flags, own.flags, "hotswap itself")
    _refuse_shared("route", new.route_paths, own.routes, "hotswap itself")
    _refuse_shared("engine", new.engines, (EMBEDDED,), "hotswap itself")
    _refuse_shared("load strategy", new.strategies, (PUSHED,), "hotswap itself")
    _refuse_names_of_others("load strategy", new.strategies, new.dist, own)
    _refuse_names_of_others("engine", new.engines, new.dist, own)
    for earlier in taken:
        _refuse_shared("load strategy", new.strategies, earlier.strategies, earlier.dist)
        _refuse_shared("engine", new.engines, earlier.engines, earlier.dist)
        _refuse_shared("route", new.route_paths, earlier.route_paths, earlier.dist)
        _refuse_shared("flag", new.flags, earlier.flags, earlier.dist)


def _refuse_names_of_others(kind: str, names: Iterable[str], dist: str, own: _Own) -> None:
    for name in names:
        owner = _as_a_name(f"hotswap-{name}")
        if owner in own.installed and owner != _as_a_name(dist):
            raise PluginError(
                f"{kind} {name!r} belongs to {owner}, which is installed; give it another name"
            )


def _as_a_name(dist: str) -> str:
    """A dist's name as indexes compare it: ``Hotswap_Disk`` is ``hotswap-disk``."""
    return re.sub(r"[-_.]+", "-", dist).lower()


def _refuse_shared(
    kind: str, new: Collection[str], earlier: Collection[str], earlier_dist: str
) -> None:
    for name in new:
        if name in earlier:
            raise PluginError(f"{kind} {name!r} belongs to {earlier_dist} already")


def _combine(taken: list[Contribution], refusals: list[Refusal]) -> Plugins:
    return Plugins(
        strategies={name: make for plugin in taken for name, make in plugin.strategies.items()},
        engines={name: make for plugin in taken for name, make in plugin.engines.items()},
        options=tuple(option for plugin in taken for option in plugin.options),
        routes=tuple(route for plugin in taken for route in plugin.routes),
        metrics=tuple(collector for plugin in taken for collector in plugin.metrics),
        pre_read=tuple(hook for plugin in taken for hook in plugin.pre_read),
        post_write=tuple(hook for plugin in taken for hook in plugin.post_write),
        changed=tuple(hook for plugin in taken for hook in plugin.changed),
        dists=tuple(
            LoadedPlugin(
                name=plugin.dist,
                version=plugin.version,
                module=plugin.module,
                hooks=plugin.hooks,
                strategies=tuple(plugin.strategies),
                engines=tuple(plugin.engines),
                flags=tuple(f"--{option.name}" for option in plugin.options),
                routes=tuple(sorted(plugin.route_paths)),
            )
            for plugin in taken
        ),
        refusals=tuple(refusals),
    )


def _refusal(entry_point: EntryPoint, error: PluginError) -> Refusal:
    dist, version = dist_of(entry_point)
    return Refusal(name=dist, version=version, module=entry_point.value, reason=words_of(error))


def _order(entry_point: EntryPoint) -> tuple[str, str]:
    return dist_of(entry_point)[0], entry_point.name


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
