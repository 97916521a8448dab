"""The likeliest tokens that reach a given chance together, without sorting all of them.

Rule: a token is in while those likelier than it have not reached ``top_p``; of tokens
that are as likely as each other and may not all be in, any are.
"""

from __future__ import annotations

import torch

__all__ = ["nucleus"]

# Floats that are not negative are in the order of their bits. The upper ones make bins of
# tokens whose chances differ by less than a hundredth: few enough bins to add up quickly.
_LOWER_BITS = 16


def nucleus(chances: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Chances and tokens of it, in any order, of ``[vocabulary]`` float32; one at least.

    Only the tokens of the bin in which ``top_p`` is reached are sorted.
    """
    bins = chances.view(torch.int32) >> _LOWER_BITS
    # The likeliest first; in double precision, as there are many.
    reached = torch.bincount(bins, weights=chances.double()).flip(0).cumsum(0)
    above = min(int((reached < top_p).sum()), reached.shape[0] - 1)
    before = float(reached[above - 1]) if above else 0.0
    doubtful = reached.shape[0] - 1 - above
    (tokens,) = (bins == doubtful).nonzero(as_tuple=True)
    ranked, order = chances[tokens].double().sort(descending=True)
    last = tokens[order[before + (ranked.cumsum(-1) - ranked) < top_p]]
    (surely,) = (bins > doubtful).nonzero(as_tuple=True)
    kept = torch.cat([surely, last])
    return chances[kept], kept
