"""The embedded engine: a small, exact decoder whose weights can be replaced while it serves."""

from hotswap.engine.config import ModelConfig, parse_config
from hotswap.engine.engine import EmbeddedEngine

__all__ = ["EmbeddedEngine", "ModelConfig", "parse_config"]
