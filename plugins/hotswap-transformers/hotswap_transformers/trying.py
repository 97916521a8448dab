"""Whether transformers batches a model as it computes it: tried once, before it serves.

Its continuous batching runs every model that is asked of it. Some have positions or a
cache of their own that it does not know of: their texts would come out wrong, in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hotswap_transformers.batching import PAGE_TOKENS, Batching

__all__ = ["TRIED", "alone", "check_batching"]

TRIED: Mapping[str, Sequence[int]] = {"one": [1, 2, 3], "other": [3, 1, 2, 2, 1, 3, 1, 1, 2]}
"""Texts that are computed together, and each alone."""

_NEXT = 1
_LEAST_ROOM = 8 * PAGE_TOKENS
# Parts of the range of the logits. Sums in another order, and no more.
_EXACT, _ROUNDED = 1e-3, 0.2


def alone(model: Any) -> dict[str, torch.Tensor]:
    """What the model itself says of each text: ``[2 x vocabulary]`` float32.

    After its last token, and after one more. To be asked before anything batches it.
    Raises: ValueError when it cannot be run.
    """
    try:
        with torch.inference_mode():
            return {
                name: model(torch.tensor([[*ids, _NEXT]], device=model.device), use_cache=False)
                .logits[0, len(ids) - 1 :]
                .float()
                for name, ids in TRIED.items()
            }
    except Exception as error:  # whatever a model raises that does not fit its configuration
        raise ValueError(
            f"{type(model).__name__} cannot be run ({type(error).__name__}: {error}); look at the "
            "config.json of the checkpoint"
        ) from error


def check_batching(batching: Batching, wanted: Mapping[str, torch.Tensor], *, model: Any) -> None:
    """Compute the texts together. Raises: ValueError when that is not what ``wanted`` says.

    A cache that has no place for them is not tried: it serves next to nothing.
    """
    if batching.total_tokens < _LEAST_ROOM:
        return
    name = type(model).__name__
    try:
        found = batching.try_out(TRIED, next_token=_NEXT)
    except Exception as error:  # whatever a model raises that is called in a way it is not made for
        raise ValueError(
            f"transformers cannot batch {name} continuously ({type(error).__name__}: {error}); "
            "serve a model of an architecture that it can, or with the embedded engine"
        ) from error
    limit = _EXACT if model.dtype is torch.float32 else _ROUNDED
    for text, logits in wanted.items():
        off = (found[text] - logits).abs().max() / (logits.max() - logits.min()).clamp_min(1e-6)
        if not off <= limit:
            raise ValueError(
                f"transformers computes {name} otherwise in a batch than alone (logits differ by "
                f"{off:.2g} of their range, wanted at most {limit:g}); its texts would be wrong: "
                "serve a model of another architecture, or with the embedded engine"
            )
