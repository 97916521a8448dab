"""Fakes, checkpoints and checks for the tests of hotswap and of its plug-ins.

The names below are imported on first use. The suites run without pytest; the fixtures of
:mod:`hotswap.testing.fixtures` need the extra ``hotswap[testing]``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotswap.testing.checkpoints import make_checkpoint, make_labelled_checkpoint
    from hotswap.testing.engine_tests import EngineTests
    from hotswap.testing.fakes import FakeEngine, FakeStrategy
    from hotswap.testing.given import EngineFactory, LiveWeights, Publish, WrongFixture
    from hotswap.testing.module_engine import ModuleEngine
    from hotswap.testing.overriding import leave_out, override
    from hotswap.testing.pre_read_tests import Hidden, Hide, PreRead, PreReadTests
    from hotswap.testing.running import run_suite
    from hotswap.testing.server import ServerProcess
    from hotswap.testing.strategy_tests import StrategyTests

__all__ = [
    "EngineFactory",
    "EngineTests",
    "FakeEngine",
    "FakeStrategy",
    "Hidden",
    "Hide",
    "LiveWeights",
    "ModuleEngine",
    "PreRead",
    "PreReadTests",
    "Publish",
    "ServerProcess",
    "StrategyTests",
    "WrongFixture",
    "leave_out",
    "make_checkpoint",
    "make_labelled_checkpoint",
    "override",
    "run_suite",
]

_HOMES = {
    "EngineFactory": "given",
    "EngineTests": "engine_tests",
    "FakeEngine": "fakes",
    "FakeStrategy": "fakes",
    "Hidden": "pre_read_tests",
    "Hide": "pre_read_tests",
    "LiveWeights": "given",
    "ModuleEngine": "module_engine",
    "PreRead": "pre_read_tests",
    "PreReadTests": "pre_read_tests",
    "Publish": "given",
    "ServerProcess": "server",
    "StrategyTests": "strategy_tests",
    "WrongFixture": "given",
    "leave_out": "overriding",
    "make_checkpoint": "checkpoints",
    "make_labelled_checkpoint": "checkpoints",
    "override": "overriding",
    "run_suite": "running",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hotswap.testing' has no attribute {name!r}")
    value: object = getattr(import_module(f"hotswap.testing.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
