"""hotswap replaces the weights of a live PyTorch inference server without a restart.

The names below are the API for embedders and plug-in authors. They are imported
on first use, so that ``import hotswap`` alone loads neither torch nor starlette.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from hotswap._version import __version__
from hotswap.errors import (
    Busy,
    CommandError,
    HotswapError,
    IllegalCommand,
    InFlight,
    Overtaken,
    Paused,
    PluginError,
    QueueFull,
    ShuttingDown,
    UpdateFailed,
    UpdateRejected,
    UpdateRolledBack,
    WeightsNotWhole,
)

if TYPE_CHECKING:
    from hotswap.controller import Controller
    from hotswap.engine import EmbeddedEngine
    from hotswap.http import Kind, KindedRoute, create_app
    from hotswap.plugins import Plugins, load_plugins
    from hotswap.settings import Settings
    from hotswap.transaction import Transaction
    from hotswap.types import (
        LoadMode,
        Manifest,
        PauseMode,
        Placement,
        Scope,
        TensorSpec,
        Update,
        UpdateReport,
        WeightStamp,
    )
    from hotswap.weights.checkpoint import Checkpoint
    from hotswap.weights.target import WeightTarget

__all__ = [
    "Busy",
    "Checkpoint",
    "CommandError",
    "Controller",
    "EmbeddedEngine",
    "HotswapError",
    "IllegalCommand",
    "InFlight",
    "Kind",
    "KindedRoute",
    "LoadMode",
    "Manifest",
    "Overtaken",
    "PauseMode",
    "Paused",
    "Placement",
    "PluginError",
    "Plugins",
    "QueueFull",
    "Scope",
    "Settings",
    "ShuttingDown",
    "TensorSpec",
    "Transaction",
    "Update",
    "UpdateFailed",
    "UpdateRejected",
    "UpdateReport",
    "UpdateRolledBack",
    "WeightStamp",
    "WeightTarget",
    "WeightsNotWhole",
    "__version__",
    "create_app",
    "load_plugins",
]

_HOMES = {
    "Checkpoint": "hotswap.weights.checkpoint",
    "Controller": "hotswap.controller",
    "EmbeddedEngine": "hotswap.engine",
    "Kind": "hotswap.http",
    "KindedRoute": "hotswap.http",
    "LoadMode": "hotswap.types",
    "Manifest": "hotswap.types",
    "PauseMode": "hotswap.types",
    "Placement": "hotswap.types",
    "Plugins": "hotswap.plugins",
    "Scope": "hotswap.types",
    "Settings": "hotswap.settings",
    "TensorSpec": "hotswap.types",
    "Transaction": "hotswap.transaction",
    "Update": "hotswap.types",
    "UpdateReport": "hotswap.types",
    "WeightStamp": "hotswap.types",
    "WeightTarget": "hotswap.weights.target",
    "create_app": "hotswap.http",
    "load_plugins": "hotswap.plugins",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hotswap' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
