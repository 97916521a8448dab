"""hotswap plug-in: the load strategy ``delta-pull``, a pull and an update in one call."""

from __future__ import annotations

from collections.abc import Mapping

from hotswap.hookspecs import StrategyFactory
from hotswap_delta_pull.strategy import DeltaPullStrategy

__all__ = ["DeltaPullStrategy", "hotswap_strategies"]

hotswap_api_version = 1


def hotswap_strategies() -> Mapping[str, StrategyFactory]:
    """Bring ``delta-pull``."""
    return {"delta-pull": DeltaPullStrategy.from_options}
