"""The likeliest tokens that reach a given chance together, without sorting all of them.

Rule: a token is in while those likelier than it have not reached ``top_p``; of tokens
that are as likely as each other and may not all be in, any are.
"""

from __future__ import annotations

import torch

__all__ = ["nucleus"]

# Most have fewer tokens, and to find these is cheapest.
_USUAL = 1024


def nucleus(chances: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Chances and tokens of it, in any order, of ``[vocabulary]`` float32; one at least."""
    first, tokens = chances.topk(min(_USUAL, chances.shape[0]))
    if chances.shape[0] > _USUAL and float(first.sum()) <= top_p:
        tokens = _large(chances, top_p)
        return chances[tokens], tokens
    is_in = first.cumsum(-1) - first < top_p
    # The likeliest always is, also for a top_p that is zero as a float32.
    is_in[0] = True
    return first[is_in], tokens[is_in]


def _large(chances: torch.Tensor, top_p: float) -> torch.Tensor:
    """Halve the doubtful ones until they are few, or all alike, and sort only these."""
    tokens = torch.arange(chances.shape[0], device=chances.device)
    surely_in: list[torch.Tensor] = []
    reached = 0.0
    # Floats that are not negative are in the order of their bits. Even if all that is
    # left out were equal, the least that is in is more likely than this.
    low = _bits(chances.new_tensor((1.0 - top_p) / (2 * chances.shape[0])))
    high = _bits(chances.max())
    while tokens.shape[0] > _USUAL and low < high:
        middle = (low + high) // 2
        is_likelier = chances.view(torch.int32) > middle
        more = float(chances[is_likelier].sum())
        if reached + more < top_p:
            surely_in.append(tokens[is_likelier])
            reached += more
            is_likelier.logical_not_()
            high = middle
        else:
            low = middle + 1
        chances, tokens = chances[is_likelier], tokens[is_likelier]
    ranked, order = chances.sort(descending=True)
    last = tokens[order[reached + ranked.cumsum(-1) - ranked < top_p]]
    return torch.cat([*surely_in, last])


def _bits(chance: torch.Tensor) -> int:
    return int(chance.view(torch.int32))
