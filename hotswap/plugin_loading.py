"""One plug-in: imported, checked against the hooks, and asked what it brings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint
from types import ModuleType
from typing import TypeVar, cast

import pluggy
from prometheus_client.registry import Collector
from starlette.routing import BaseRoute

from hotswap.errors import PluginError
from hotswap.foreign import one_line, said, shown, words_of
from hotswap.hookspecs import (
    API_VERSION,
    GROUP,
    OLDEST_API_VERSION,
    EngineFactory,
    Hooks,
    StrategyFactory,
)
from hotswap.options import Option, option_values
from hotswap.plugin_hooks import ChangedHook, PostWriteHook, PreReadHook
from hotswap.state import Change

__all__ = [
    "NAME",
    "Contribution",
    "Finder",
    "api_version_fault",
    "dist_of",
    "said_by",
]

NAME: re.Pattern[str] = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
"""What a strategy or an engine may be called: what a dist may be."""

_PREFIX = "hotswap_"
_API_ATTRIBUTE = "hotswap_api_version"
_T = TypeVar("_T")
_Bound = Mapping[str, Callable[..., object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What one plug-in brings, every value checked."""

    dist: str
    version: str
    module: str
    hooks: tuple[str, ...]
    strategies: Mapping[str, StrategyFactory]
    engines: Mapping[str, EngineFactory]
    options: tuple[Option, ...]
    routes: tuple[BaseRoute, ...]
    metrics: tuple[Collector, ...]
    pre_read: tuple[PreReadHook, ...]
    post_write: tuple[PostWriteHook, ...]
    changed: tuple[ChangedHook, ...]

    @property
    def route_paths(self) -> frozenset[str]:
        """The path of every route that has one."""
        return frozenset(path for route in self.routes if (path := getattr(route, "path", "")))

    @property
    def flags(self) -> frozenset[str]:
        """Every command-line flag of the options."""
        return frozenset(flag for option in self.options for flag in option.flags)


def dist_of(entry_point: EntryPoint) -> tuple[str, str]:
    """Name and version of the dist that an entry point comes from, which may say neither."""
    dist = entry_point.dist
    return said_by(dist, "Name") or entry_point.name, said_by(dist, "Version") or "?"


def said_by(dist: Distribution | None, field: str) -> str | None:
    """One field of a dist's metadata, which may be lacking."""
    if dist is None or field not in dist.metadata:
        return None
    return dist.metadata[field]


class Finder(pluggy.PluginManager):
    """Takes every function named ``hotswap_*`` for a hook; no marker is needed, or forgotten."""

    def __init__(self) -> None:
        super().__init__(GROUP)
        self.add_hookspecs(Hooks)

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        """Pluggy asks this about every attribute of a plug-in."""
        if name not in _hook_names(plugin):
            return None
        return {
            "wrapper": False,
            "hookwrapper": False,
            "optionalhook": False,
            "tryfirst": False,
            "trylast": False,
            "specname": None,
        }

    def load(self, entry_point: EntryPoint) -> Contribution:
        """Import the plug-in, check it, ask it. Raises: PluginError with the reason."""
        try:
            return self._load(entry_point)
        except PluginError:
            raise
        except BaseException as error:
            # Whatever else a plug-in's objects do when they are looked at.
            raise PluginError(said(error)) from error

    def _load(self, entry_point: EntryPoint) -> Contribution:
        plugin = _imported(entry_point)
        _check_api_version(plugin)
        _check_functions(plugin)
        dist, version = dist_of(entry_point)
        bound = self._bound(plugin, name=f"{dist}:{entry_point.name}")
        options = _options(bound)
        return Contribution(
            dist=dist,
            version=version,
            module=entry_point.module,
            hooks=tuple(sorted(bound)),
            strategies=_factories(bound, "hotswap_strategies"),
            engines=_factories(bound, "hotswap_engines"),
            options=options,
            routes=_routes(bound),
            metrics=_metrics(bound),
            pre_read=tuple(
                # Until a server brings the values that it was given, the defaults count.
                PreReadHook(name=dist, call=call, options=option_values(options, environ={}))
                for call in _async(bound, "hotswap_pre_read")
            ),
            post_write=tuple(
                PostWriteHook(name=dist, call=call) for call in _async(bound, "hotswap_post_write")
            ),
            changed=tuple(
                ChangedHook(name=dist, call=cast(Callable[[Change], None], call))
                for name, call in bound.items()
                if name == "hotswap_changed"
            ),
        )

    def _bound(self, plugin: object, *, name: str) -> _Bound:
        try:
            self.register(plugin, name)
        except (pluggy.PluginValidationError, ValueError) as error:
            raise PluginError(one_line(words_of(error))) from error
        return {
            caller.name: _positional(caller.spec.argnames, implementation)
            for caller in self.get_hookcallers(plugin) or ()
            for implementation in caller.get_hookimpls()
            if implementation.plugin is plugin and caller.spec is not None
        }


def _positional(wanted: Sequence[str], implementation: pluggy.HookImpl) -> Callable[..., object]:
    """Call with all arguments of the hook; pass on those that the plug-in takes."""

    def call(*arguments: object) -> object:
        given = dict(zip(wanted, arguments, strict=True))
        return implementation.function(*(given[name] for name in implementation.argnames))

    return call


def _imported(entry_point: EntryPoint) -> object:
    try:
        loaded: object = entry_point.load()
    except BaseException as error:
        if EntryPoint.pattern.match(entry_point.value) is None:
            raise PluginError(
                f"the entry point {entry_point.name!r} is {entry_point.value!r}, wanted a module, "
                "or module:object; put it right in the dist's pyproject.toml"
            ) from error
        raise PluginError(f"cannot be imported: {said(error)}") from error
    return loaded


def _hook_names(plugin: object) -> list[str]:
    # A module with that prefix is something that the plug-in imported.
    return [
        name
        for name in dir(plugin)
        if name.startswith(_PREFIX)
        and name != _API_ATTRIBUTE
        and not isinstance(getattr(plugin, name), ModuleType)
    ]


def api_version_fault(
    stated: object, *, oldest: int = OLDEST_API_VERSION, newest: int = API_VERSION
) -> str | None:
    """Why a plug-in that states ``stated`` cannot be used, and what to do; None when it can."""
    if type(stated) is int and oldest <= stated <= newest:
        return None
    understood = f"{newest}" if oldest == newest else f"{oldest} to {newest}"
    seen = "is missing" if stated is None else f"is {stated!r}"
    todo = f"state the one that the plug-in was written for, {_API_ATTRIBUTE} = {newest}"
    if type(stated) is int:
        todo = (
            "upgrade hotswap, or install an older release of the plug-in"
            if stated > newest
            else "install a newer release of the plug-in"
        )
    return f"{_API_ATTRIBUTE} {seen}, this hotswap wants {understood}; {todo}"


def _check_api_version(plugin: object) -> None:
    fault = api_version_fault(getattr(plugin, _API_ATTRIBUTE, None))
    if fault is not None:
        raise PluginError(fault)


def _check_functions(plugin: object) -> None:
    for name in _hook_names(plugin):
        function, spec = getattr(plugin, name), getattr(Hooks, name, None)
        if spec is None:
            known = ", ".join(hook for hook in vars(Hooks) if hook.startswith(_PREFIX))
            raise PluginError(f"{name} is no hook; the hooks are {known}")
        if not inspect.isroutine(function):
            raise PluginError(f"{name} is a {type(function).__name__}, wanted a function")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise PluginError(
                f"{name} has a yield: called, it has returned a generator, and nothing of it has "
                "run; return what the hook wants, and yield nothing"
            )
        wanted = "async def" if inspect.iscoroutinefunction(spec) else "def"
        if inspect.iscoroutinefunction(function) != (wanted == "async def"):
            raise PluginError(f"{name} is not written as {wanted!r}, as the hook wants it")


def _asked(bound: _Bound, hook: str) -> object:
    try:
        return bound[hook]()
    except BaseException as error:
        raise PluginError(f"{hook} failed: {said(error)}") from error


def _factories(bound: _Bound, hook: str) -> Mapping[str, Callable[..., _T]]:
    if hook not in bound:
        return {}
    answer = _asked(bound, hook)
    if not isinstance(answer, Mapping):
        raise PluginError(f"{hook} returned a {type(answer).__name__}, wanted a mapping")
    for name, factory in answer.items():
        if not isinstance(name, str) or not name or not callable(factory):
            raise PluginError(
                f"{hook} returned {shown(name)}: {shown(factory)}, wanted name: callable"
            )
        if NAME.fullmatch(name) is None:
            raise PluginError(
                f"{hook} returned the name {name!a:.80}, wanted at most 64 ASCII letters, digits, "
                "'.', '_' and '-', a letter or a digit first and last: clients send it in requests"
            )
    return dict(answer)


def _listed(bound: _Bound, hook: str, kind: type[_T]) -> tuple[_T, ...]:
    if hook not in bound:
        return ()
    answer = _asked(bound, hook)
    if not isinstance(answer, Sequence) or not all(isinstance(item, kind) for item in answer):
        raise PluginError(
            f"{hook} returned a {type(answer).__name__}, wanted a list of {kind.__name__}"
        )
    return tuple(answer)


def _options(bound: _Bound) -> tuple[Option, ...]:
    options = _listed(bound, "hotswap_options", Option)
    flags = [flag for option in options for flag in option.flags]
    if len(set(flags)) != len(flags):
        raise PluginError(f"hotswap_options returned the same flag twice: {', '.join(flags)}")
    return options


def _routes(bound: _Bound) -> tuple[BaseRoute, ...]:
    routes = _listed(bound, "hotswap_routes", BaseRoute)
    for route in routes:
        if getattr(route, "kind", None) is None:
            raise PluginError(
                f"hotswap_routes returned {shown(route)}, which says no kind and could never run; "
                "make it a hotswap.http.KindedRoute"
            )
    return routes


def _metrics(bound: _Bound) -> tuple[Collector, ...]:
    collectors = _listed(bound, "hotswap_metrics", object)
    for collector in collectors:
        if isinstance(collector, type) or not callable(getattr(collector, "collect", None)):
            raise PluginError(
                f"hotswap_metrics returned {shown(collector)}, which has no collect(); make it an "
                "instrument of prometheus_client with registry=None, or a Collector"
            )
    return cast(tuple[Collector, ...], collectors)


def _async(bound: _Bound, hook: str) -> list[Callable[..., Awaitable[None]]]:
    # _check_functions has made sure of the async def; pluggy of the arguments' names.
    if hook not in bound:
        return []
    return [cast(Callable[..., Awaitable[None]], bound[hook])]
