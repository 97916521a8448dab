"""How the prefill tokens of one forward pass are shared out among prompts.

Rule: half goes to the prompt that came first, which bounds how long any of them takes
whatever comes after it; the rest goes to those with the least left, so that a short
prompt need not wait for the long ones before it.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["share"]


def share(lefts: Sequence[int], *, budget: int) -> list[int]:
    """How many of its ``lefts`` tokens each prompt may run now, at most ``budget`` in all.

    The prompts are in the order in which they came. As long as one has tokens left,
    the first of those gets some, and nothing of the budget is kept back.
    """
    shares = [0] * len(lefts)
    first = next((at for at, left in enumerate(lefts) if left), None)
    if first is None:
        return shares
    shares[first] = min(lefts[first], (budget + 1) // 2)
    rest = budget - shares[first]
    # A stable sort: of equals the one that came first.
    for at in sorted(range(len(lefts)), key=lambda at: lefts[at] - shares[at]):
        more = min(lefts[at] - shares[at], rest)
        shares[at] += more
        rest -= more
    return shares
