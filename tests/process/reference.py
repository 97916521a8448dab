"""The same checkpoints in transformers: the judge that shares no code with hotswap."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from contrib.demo.quiet import quiet_transformers

__all__ = ["LOGITS_AGREE", "Reference"]

LOGITS_AGREE = 1e-4
"""How closely float32 logits of two implementations have to agree."""


class Reference:
    """One checkpoint directory, in float32 on the CPU."""

    def __init__(self, directory: Path) -> None:
        transformers = quiet_transformers()
        model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        # Requests of these tests ignore the end of the text, and so has ``generate`` to.
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
        self._model: Any = model.eval()

    def __repr__(self) -> str:
        return f"<Reference {type(self._model).__name__}>"

    def logits(self, input_ids: Sequence[int]) -> torch.Tensor:
        """``[tokens x vocabulary]`` float32."""
        with torch.inference_mode():
            logits: torch.Tensor = self._model(torch.tensor([list(input_ids)])).logits[0]
        return logits.float()

    def misses(self, tokens: Sequence[int], start: int, end: int) -> list[tuple[int, float]]:
        """Where ``tokens[start:end]`` are not greedy after what stands before each.

        Position and by how much another token's logit is higher. Two logits within
        ``LOGITS_AGREE`` are a tie, which rounding alone decides: among ten thousand
        tokens of a random model, one has such a tie.
        """
        logits = self.logits(tokens[: end - 1])[start - 1 :]
        chosen = logits.gather(-1, torch.tensor(tokens[start:end], dtype=torch.long)[:, None])[:, 0]
        behind = logits.amax(-1) - chosen
        return [
            (start + at, float(behind[at]))
            for at in (behind > LOGITS_AGREE).nonzero()[:, 0].tolist()
        ]

    def greedy(self, input_ids: Sequence[int], tokens: int) -> list[int]:
        """What ``generate`` appends; exactly ``tokens`` of them, whatever comes."""
        prompt = torch.tensor([list(input_ids)])
        with torch.inference_mode():
            whole = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                max_new_tokens=tokens,
            )
        return [int(token) for token in whole[0, prompt.shape[1] :]]
