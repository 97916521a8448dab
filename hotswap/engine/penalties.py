"""What a request's own output does to the chances of its next token.

Rules, which are SGLang's: only output tokens count, not those of the prompt; what is
subtracted (frequency, presence) goes before what is scaled (repetition).
"""

from __future__ import annotations

from collections import Counter

import torch

from hotswap.seams import SamplingParams

__all__ = ["Penalties", "check_penalties"]

_LARGEST = 2.0


def check_penalties(params: SamplingParams) -> None:
    """Raises: ValueError for penalties out of their range."""
    for name in ("frequency_penalty", "presence_penalty"):
        value: float = getattr(params, name)
        if not -_LARGEST <= value <= _LARGEST:
            raise ValueError(f"{name} is {value}, wanted -2 to 2")
    if not 0.0 < params.repetition_penalty <= _LARGEST:
        raise ValueError(
            f"repetition_penalty is {params.repetition_penalty}, wanted more than 0 and at most 2 "
            "(1 changes nothing)"
        )


class Penalties:
    """Counts the output tokens of one request, and lowers their logits."""

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._counts: Counter[int] = Counter()
        self.has_effect: bool = (
            params.frequency_penalty != 0.0
            or params.presence_penalty != 0.0
            or params.repetition_penalty != 1.0
        )

    def __repr__(self) -> str:
        return (
            f"<Penalties {len(self._counts)} tokens{'' if self.has_effect else ' without effect'}>"
        )

    def push(self, token_id: int) -> None:
        """Count one more output token."""
        if self.has_effect:
            self._counts[token_id] += 1

    def apply(self, logits: torch.Tensor) -> None:
        """Change ``[vocabulary]`` float32 in place; the largest of them stays finite."""
        if not self._counts:
            return
        ids = torch.tensor(list(self._counts), device=logits.device)
        counts = torch.tensor(list(self._counts.values()), dtype=logits.dtype, device=logits.device)
        params = self._params
        seen = logits[ids] - params.frequency_penalty * counts - params.presence_penalty
        factor = params.repetition_penalty
        scaled = torch.where(seen < 0, seen * factor, seen / factor)
        # A tiny factor would make infinity of a large logit, and no chances come of that.
        logits[ids] = scaled.clamp(max=torch.finfo(logits.dtype).max)
