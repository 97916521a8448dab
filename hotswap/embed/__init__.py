"""For embedders: hotswap around an ``nn.Module`` that they serve themselves."""

from __future__ import annotations

from hotswap.embed.engine import GatedEngine
from hotswap.embed.gate import ForwardGate
from hotswap.embed.hot_swap import HotSwap
from hotswap.embed.threaded import HotSwapThread

__all__ = ["ForwardGate", "GatedEngine", "HotSwap", "HotSwapThread"]
