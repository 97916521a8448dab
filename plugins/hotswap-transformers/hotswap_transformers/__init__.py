"""hotswap plug-in: the engine ``transformers``, any causal language model of that library.

Every server that finds the plug-in imports this module; the library itself, which takes
seconds, is imported when the engine is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hotswap.hookspecs import EngineFactory
from hotswap_transformers.options import engine_from_options

if TYPE_CHECKING:
    from hotswap_transformers.engine import TransformersEngine

__all__ = ["TransformersEngine", "engine_from_options", "hotswap_engines"]

hotswap_api_version = 1


def hotswap_engines() -> Mapping[str, EngineFactory]:
    """Bring ``transformers``."""
    return {"transformers": engine_from_options}


def __getattr__(name: str) -> object:
    if name != "TransformersEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hotswap_transformers.engine import TransformersEngine

    return TransformersEngine
