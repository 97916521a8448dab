"""Fakes, checkpoints and checks for the tests of hotswap and of its plug-ins.

The names below are imported on first use. The suites run without pytest; the fixtures of
:mod:`hotswap.testing.fixtures` need the extra ``hotswap[testing]``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotswap.testing.checkpoints import make_checkpoint, make_labelled_checkpoint
    from hotswap.testing.engine_tests import EngineFactory, EngineTests, LiveWeights
    from hotswap.testing.fakes import FakeEngine, FakeStrategy
    from hotswap.testing.module_engine import ModuleEngine
    from hotswap.testing.pre_read_tests import Hidden, Hide, PreRead, PreReadTests
    from hotswap.testing.server import ServerProcess
    from hotswap.testing.strategy_tests import Publish, StrategyTests
    from hotswap.testing.suites import leave_out, override, run_suite

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
    "leave_out",
    "make_checkpoint",
    "make_labelled_checkpoint",
    "override",
    "run_suite",
]

_HOMES = {
    "EngineFactory": "engine_tests",
    "EngineTests": "engine_tests",
    "FakeEngine": "fakes",
    "FakeStrategy": "fakes",
    "Hidden": "pre_read_tests",
    "Hide": "pre_read_tests",
    "LiveWeights": "engine_tests",
    "ModuleEngine": "module_engine",
    "PreRead": "pre_read_tests",
    "PreReadTests": "pre_read_tests",
    "Publish": "strategy_tests",
    "ServerProcess": "server",
    "StrategyTests": "strategy_tests",
    "leave_out": "suites",
    "make_checkpoint": "checkpoints",
    "make_labelled_checkpoint": "checkpoints",
    "override": "suites",
    "run_suite": "suites",
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
