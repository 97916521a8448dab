"""hotswap around a module that somebody else serves."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import anyio
from starlette.applications import Starlette
from torch import nn

from hotswap.controller import Controller
from hotswap.embed.engine import GatedEngine
from hotswap.embed.gate import ForwardGate
from hotswap.errors import WeightsNotWhole
from hotswap.follow import Follower
from hotswap.follow.start import FollowSetup
from hotswap.http.app import create_app
from hotswap.http.dialect import paused_policy
from hotswap.http.served import Served
from hotswap.options import option_values
from hotswap.plugin_hooks import with_options
from hotswap.plugins import Plugins, load_plugins, resolve_strategies
from hotswap.pulls import Puller
from hotswap.seams import LoadStrategy
from hotswap.settings import Settings
from hotswap.state import Change, Weights
from hotswap.types import LoadMode, Scope, Update, UpdateReport, WeightStamp, member
from hotswap.weights.target import WeightTarget

__all__ = ["HotSwap"]


class HotSwap:
    """The state machine, the HTTP app and the gate of one module. Enter it once.

    ``module`` is the live one; a :class:`WeightTarget` says more about its names.
    Strategies come from the installed plug-ins, unless ``strategies`` names others.
    ``settings`` are those of the app: without ``allow_weight_update`` it shows the state
    and changes nothing. ``flush`` drops what was computed with the weights and kept.
    ``stamp`` says which weights the module has now. With ``follow`` in ``settings`` it keeps
    itself current with a stream, whose version 0 is ``model``; ``follower`` says how far it is.

    ``gate`` may be used on every thread, also before the block and after it. Everything
    else belongs to the event loop that runs the ``async with``. Leaving the block ends
    what was begun: a commit is finished, a source that is still being read is let go.

    Raises: UpdateRejected for a module that cannot be updated, or a source that can be none;
    PluginError; TypeError for what is no module; ValueError and OSError for a stream that cannot
    be followed.
    """

    def __init__(
        self,
        module: nn.Module | WeightTarget,
        *,
        settings: Settings | None = None,
        strategies: Mapping[str, LoadStrategy] | None = None,
        flush: Callable[[], int | None] | None = None,
        stamp: WeightStamp | None = None,
    ) -> None:
        target = module if isinstance(module, WeightTarget) else WeightTarget(_checked(module))
        told = settings or Settings()
        plugins = load_plugins() if strategies is None else Plugins()
        values = option_values(plugins.options) | told.option_values
        follows = FollowSetup.of(values)
        if strategies is None:
            made_of = values if follows is None else follows.strategy_values
            strategies = resolve_strategies(plugins, made_of)
        if follows is not None:
            strategies = follows.strategies(strategies)
        self.gate: ForwardGate = ForwardGate()
        self.engine: GatedEngine = GatedEngine(target, gate=self.gate, flush=flush, stamp=stamp)
        self.controller: Controller = Controller(
            self.engine,
            strategies=strategies,
            pre_read=with_options(plugins.pre_read, values),
            changed=plugins.changed,
            stamp=stamp,
            while_paused=paused_policy(told),
            hold_s=told.hold_s,
        )
        self.controller.machine.observe(self._on_change)
        puller = Puller.from_options(values, hooks=plugins.pre_read)
        self.follower: Follower | None = None
        if follows is not None:
            self.follower = follows.follower(
                self.controller, base=puller.base, hooks=plugins.pre_read
            )
        self.app: Starlette = create_app(
            self.controller,
            self.engine,
            told,
            plugins=plugins,
            puller=puller,
            follower=self.follower,
            strategies=strategies,
        )
        self._entered = False

    def __repr__(self) -> str:
        return f"<HotSwap {self.controller.machine.state} {self.engine.target!r}>"

    async def __aenter__(self) -> Self:
        if self._entered:
            raise RuntimeError("this HotSwap has been entered before; make a new one")
        self._entered = True
        await self.controller.start()
        if self.follower is not None:
            await self.follower.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        served: Served = self.app.state.served
        with anyio.CancelScope(shield=True):
            served.begin_shutdown()
            if self.follower is not None:
                await self.follower.__aexit__(kind, error, trace)
            await self.controller.close()
            served.end_shutdown()
        # Threads that wait at the gate of a server that ends must not wait for ever.
        self.gate.open()

    async def update(
        self,
        source: str | os.PathLike[str],
        *,
        strategy: str = "disk",
        version: str | int | None = None,
        scope: Scope | str = Scope.FULL,
        mode: LoadMode | str = LoadMode.STAGED,
        options: Mapping[str, object] | None = None,
    ) -> UpdateReport:
        """Replace the weights; forward passes stand still for the commit alone.

        ``version`` is a label of at most 4096 characters; a number is taken as its digits.

        Cancelled before the first write it is undone; after it, it runs to its end.
        Raises: RuntimeError before the ``async with`` block or inside the gate, ValueError for
        what ``Update`` does not take (a word that is no ``scope`` or ``mode``, a ``version`` or
        ``strategy`` that is no text), and what ``Controller.update`` raises.
        """
        if not self._entered:
            raise RuntimeError(
                "this HotSwap does not run yet; update inside its 'async with' block"
            )
        self.gate.check_outside("update")
        return await self.controller.update(
            Update(
                source=os.fspath(source) if isinstance(source, os.PathLike) else source,
                strategy=strategy,
                version=_label(version),
                scope=member(Scope, scope, what="scope"),
                mode=member(LoadMode, mode, what="mode"),
                options={} if options is None else options,
            )
        )

    def _on_change(self, change: Change) -> None:
        if self.controller.machine.facts.weights is Weights.WHOLE:
            self.gate.refuse(None)
        else:
            self.gate.refuse(_not_whole)


def _checked(module: object) -> nn.Module:
    if isinstance(module, nn.Module):
        return module
    raise TypeError(
        f"module is a {type(module).__name__}, wanted the live torch.nn.Module, or a "
        "hotswap.WeightTarget of it"
    )


def _label(version: object) -> str | None:
    """``version`` as the label of an ``Update``, which refuses what is none.

    Raises: ValueError for what is neither text nor a number.
    """
    if version is None or isinstance(version, str):
        return version
    if isinstance(version, int) and not isinstance(version, bool):
        return str(version)
    raise ValueError(
        f"version is a {type(version).__name__}, wanted a text, a whole number, or None to keep "
        "the one before"
    )


def _not_whole() -> WeightsNotWhole:
    return WeightsNotWhole(
        "the weights are not whole after a failed update; send a full update, then try again"
    )
