"""Llama, Qwen2 and Qwen3 as one module; what differs is in the configuration.

Parameter names are those of Hugging Face, with ``qkv_proj`` and ``gate_up_proj`` in
place of the split ones; ``fused_rules`` and ``padded_rows`` say how a checkpoint's
tensors lie in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional

from hotswap.engine.attention import TextAttention
from hotswap.engine.batch import Batch
from hotswap.engine.config import ModelConfig
from hotswap.engine.layers import DecoderLayer, RmsNorm
from hotswap.engine.linear import Linear, empty_parameter, is_slow, linear
from hotswap.engine.logprobs import ScoredRows
from hotswap.engine.rope import RotaryEmbedding, Rotation
from hotswap.weights.mapping import FusedPart, FusedRule

__all__ = ["VOCAB_MULTIPLE", "CausalLm", "fused_rules", "padded_rows"]

VOCAB_MULTIPLE = 64

# A prompt's logits all at once would take gigabytes: tokens times vocabulary.
_SCORED_ROWS = 64


class Embedding(nn.Module):
    """Token embeddings, ``weight`` ``[padded vocabulary x hidden]``."""

    def __init__(
        self, rows: int, columns: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.weight: nn.Parameter = empty_parameter(rows, columns, dtype=dtype, device=device)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """``[tokens]`` int64 to ``[tokens x hidden]``."""
        return functional.embedding(tokens, self.weight)


class Graphs(Protocol):
    """Forward passes that were captured; see ``hotswap.engine.graphs``."""

    def fit(self, batch: Batch) -> bool:
        """Whether there is one for a batch like this."""
        ...

    def run(self, batch: Batch, attention: TextAttention) -> torch.Tensor:
        """What :meth:`Decoder.forward` returns."""
        ...


class Decoder(nn.Module):
    """Everything under ``model.`` in a checkpoint."""

    def __init__(
        self, config: ModelConfig, vocab_rows: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self._heads, self._kv_heads = config.num_attention_heads, config.num_kv_heads
        self.embed_tokens: Embedding = Embedding(
            vocab_rows, config.hidden_size, dtype=dtype, device=device
        )
        self.blocks: tuple[DecoderLayer, ...] = tuple(
            DecoderLayer(config, layer, dtype=dtype, device=device)
            for layer in range(config.num_layers)
        )
        self.layers: nn.ModuleList = nn.ModuleList(self.blocks)
        self.norm: RmsNorm = RmsNorm(
            config.hidden_size, config.rms_norm_eps, dtype=dtype, device=device
        )
        self.rotary_emb: RotaryEmbedding = RotaryEmbedding(
            config.rope, config.head_dim, device=device
        )
        self.graphs: Graphs | None = None

    def forward(self, batch: Batch) -> torch.Tensor:
        """``[tokens x hidden]``, before the last norm; float32 where the model's dtype is slow."""
        attention = TextAttention(batch.segments, heads=self._heads, kv_heads=self._kv_heads)
        if self.graphs is not None and self.graphs.fit(batch):
            return self.graphs.run(batch, attention)
        hidden, rotation = self.begin(batch.tokens, batch.positions, batch.lengths)
        for layer in self.blocks:
            hidden = layer(hidden, rotation, attention)
        return hidden

    def begin(
        self, tokens: torch.Tensor, positions: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, Rotation]:
        """What the first layer gets; each argument is ``[tokens]`` int64."""
        hidden: torch.Tensor = self.embed_tokens(tokens)
        if is_slow(hidden):
            hidden = hidden.float()
        return hidden, self.rotary_emb(positions, lengths, dtype=hidden.dtype)


class CausalLm(nn.Module):
    """The whole model. With a tied head ``lm_head.weight`` *is* the embedding's parameter.

    The vocabulary is padded to a multiple of ``vocab_multiple`` rows, which stay
    zero; padded logits are cut off.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        vocab_multiple: int = VOCAB_MULTIPLE,
    ) -> None:
        super().__init__()
        self.config = config
        rows = -(-config.vocab_size // vocab_multiple) * vocab_multiple
        self.model: Decoder = Decoder(config, rows, dtype=dtype, device=device)
        self.lm_head: Linear = Linear(
            config.hidden_size,
            0 if config.tie_word_embeddings else rows,
            bias=False,
            dtype=dtype,
            device=device,
        )
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(
        self, batch: Batch, *, every_row: bool = False, scored: Sequence[ScoredRows] = ()
    ) -> torch.Tensor:
        """Logits ``[texts x vocabulary]`` float32 after each text's last token.

        ``every_row`` gives those after each token; ``scored`` are given theirs, a few
        rows at a time. Stores keys and values, and counts them in.
        """
        hidden = self.model(batch)
        batch.advance()
        for one in scored:
            for rows in hidden[one.rows].split(_SCORED_ROWS):
                one.take(self._logits(rows))
        return self._logits(hidden if every_row else hidden[batch.ends])

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        vocabulary = self.lm_head.weight[: self.config.vocab_size]
        return linear(self.model.norm(hidden), vocabulary).float()


def fused_rules(config: ModelConfig) -> tuple[FusedRule, ...]:
    """How the split names of a checkpoint lie in the fused parameters."""
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
    inner = config.intermediate_size
    return (
        FusedRule(
            fused="qkv_proj",
            parts=(
                FusedPart("q_proj", queries),
                FusedPart("k_proj", keys),
                FusedPart("v_proj", keys),
            ),
        ),
        FusedRule(
            fused="gate_up_proj",
            parts=(FusedPart("gate_proj", inner), FusedPart("up_proj", inner)),
        ),
    )


def padded_rows(model: CausalLm) -> dict[str, int]:
    """Live names with more rows than a checkpoint has, and how many it has."""
    names = ("model.embed_tokens.weight", "lm_head.weight")
    rows = model.config.vocab_size
    live = {name: model.get_parameter(name) for name in names}
    return {name: rows for name, parameter in live.items() if parameter.shape[0] != rows}
