"""Small modules that have every kind of weight a target must place."""

from __future__ import annotations

import torch
from torch import nn

from hotswap.weights.mapping import FusedPart, FusedRule
from hotswap.weights.target import WeightTarget

__all__ = ["TINY_RULES", "TinyModel", "tiny_state", "tiny_target"]

HIDDEN, Q_ROWS, KV_ROWS, FFN_ROWS, VOCAB = 6, 8, 4, 5, 11

TINY_RULES: tuple[FusedRule, ...] = (
    FusedRule(
        fused="qkv_proj",
        parts=(
            FusedPart("q_proj", Q_ROWS),
            FusedPart("k_proj", KV_ROWS),
            FusedPart("v_proj", KV_ROWS),
        ),
    ),
    FusedRule(
        fused="gate_up_proj",
        parts=(FusedPart("gate_proj", FFN_ROWS), FusedPart("up_proj", FFN_ROWS)),
    ),
)


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj: nn.Linear = nn.Linear(HIDDEN, Q_ROWS + 2 * KV_ROWS)
        self.gate_up_proj: nn.Linear = nn.Linear(HIDDEN, 2 * FFN_ROWS, bias=False)
        self.scale: nn.Parameter = nn.Parameter(torch.tensor(1.0))
        self.derived: torch.Tensor = torch.zeros(())
        self.recomputed: int = 0

    def hotswap_recompute(self) -> None:
        """``derived`` is ``scale + 1``."""
        self.derived.copy_(self.scale + 1)
        self.recomputed += 1


class TinyModel(nn.Module):
    """Embedding, one layer (fused, GQA, biases, a scalar), a head; buffers of both kinds.

    Its ``padding`` vocabulary rows come on top of ``VOCAB`` ones; ``tied`` shares the
    embedding with the head. Parameters are random, padding is zero.
    """

    def __init__(self, *, tied: bool = False, padding: int = 0) -> None:
        super().__init__()
        self.embed: nn.Embedding = nn.Embedding(VOCAB + padding, HIDDEN)
        self.layer: _Layer = _Layer()
        self.head: nn.Linear = nn.Linear(HIDDEN, VOCAB + padding, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        with torch.no_grad():
            self.embed.weight[VOCAB:].zero_()
            self.head.weight[VOCAB:].zero_()
        self.register_buffer("steps", torch.tensor(3))
        self.register_buffer("mean", torch.rand(4))
        self.register_buffer("inv_freq", torch.rand(5), persistent=False)


def tiny_target(model: TinyModel) -> WeightTarget:
    """A target with the rules of ``TinyModel``, padded vocabularies included."""
    padded = {"embed.weight": VOCAB, "head.weight": VOCAB}
    return WeightTarget(model, fused=TINY_RULES, padded_rows=padded, skipped=("rotary.inv_freq",))


def tiny_state(seed: int, *, tied: bool = False) -> dict[str, torch.Tensor]:
    """A full checkpoint of ``TinyModel`` in split names, the head left out when tied."""
    draw = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "embed.weight": (VOCAB, HIDDEN),
        "layer.q_proj.weight": (Q_ROWS, HIDDEN),
        "layer.k_proj.weight": (KV_ROWS, HIDDEN),
        "layer.v_proj.weight": (KV_ROWS, HIDDEN),
        "layer.q_proj.bias": (Q_ROWS,),
        "layer.k_proj.bias": (KV_ROWS,),
        "layer.v_proj.bias": (KV_ROWS,),
        "layer.gate_proj.weight": (FFN_ROWS, HIDDEN),
        "layer.up_proj.weight": (FFN_ROWS, HIDDEN),
        "layer.scale": (),
        "head.weight": (VOCAB, HIDDEN),
        "mean": (4,),
    }
    if tied:
        del shapes["head.weight"]
    state = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    return {**state, "steps": torch.tensor(seed)}
