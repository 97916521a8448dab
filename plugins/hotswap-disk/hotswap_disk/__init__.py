"""hotswap plug-in: the load strategy ``disk``, a checkpoint directory on the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client.registry import Collector
from starlette.routing import BaseRoute

from hotswap.hookspecs import StrategyFactory
from hotswap.options import Option
from hotswap_disk.checking import CHECK
from hotswap_disk.counting import OPEN, OPENED
from hotswap_disk.strategy import DiskStrategy

__all__ = [
    "DiskStrategy",
    "hotswap_metrics",
    "hotswap_options",
    "hotswap_routes",
    "hotswap_strategies",
]

hotswap_api_version = 1


def hotswap_strategies() -> Mapping[str, StrategyFactory]:
    """Bring ``disk``."""
    return {"disk": DiskStrategy.from_options}


def hotswap_options() -> Sequence[Option]:
    """Bring ``--weights-root``."""
    return (
        Option(
            name="weights-root",
            help="directory that checkpoints for updates must lie in, every symbolic link "
            "resolved; repeatable; anywhere when not given",
            repeatable=True,
        ),
    )


def hotswap_routes() -> Sequence[BaseRoute]:
    """Bring ``/hotswap/v1/disk/check``."""
    return (CHECK,)


def hotswap_metrics() -> Sequence[Collector]:
    """Bring ``hotswap_disk_checkpoints_total`` and ``hotswap_disk_checkpoints_open``."""
    return (OPENED, OPEN)
