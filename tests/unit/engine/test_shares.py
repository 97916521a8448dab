"""How one pass's prompt tokens are shared out: nothing is wasted, nobody waits for ever."""

from __future__ import annotations

from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotswap.engine.shares import share

LEFTS = st.lists(st.integers(0, 300), max_size=12)
BUDGET = st.integers(1, 100)


@pytest.mark.parametrize(
    ("lefts", "budget", "shares"),
    [
        ([], 8, []),
        ([0, 0], 8, [0, 0]),
        ([100], 8, [8]),
        ([100, 100], 8, [8, 0]),
        ([100, 3, 100], 8, [5, 3, 0]),
        ([100, 6, 2], 8, [4, 2, 2]),
        ([2, 100, 50], 8, [2, 0, 6]),
        ([0, 100, 50], 7, [0, 4, 3]),
    ],
)
def test_half_to_the_first_and_the_rest_to_the_shortest(
    lefts: list[int], budget: int, shares: list[int]
) -> None:
    assert share(lefts, budget=budget) == shares


@given(LEFTS, BUDGET)
def test_the_whole_budget_is_used_and_no_more(lefts: list[int], budget: int) -> None:
    shares = share(lefts, budget=budget)
    assert sum(shares) == min(budget, sum(lefts))
    assert all(0 <= got <= left for got, left in zip(shares, lefts, strict=True))


@given(st.lists(st.integers(101, 300), max_size=12), st.integers(2, 100), st.data())
def test_a_short_one_beside_long_ones_is_through_at_once(
    longs: list[int], budget: int, data: st.DataObject
) -> None:
    short = data.draw(st.integers(1, budget // 2))
    at = data.draw(st.integers(0, len(longs)))
    assert share([*longs[:at], short, *longs[at:]], budget=budget)[at] == short


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.integers(1, 20),
    st.lists(st.lists(st.integers(1, 10), max_size=4), min_size=1, max_size=6),
)
def test_a_prompt_waits_only_for_those_before_it_whatever_comes_later(
    first: list[int], budget: int, arrivals: list[list[int]]
) -> None:
    lefts, half = list(first), (budget + 1) // 2
    # Each pass ends a prompt before the last one, or takes half a pass off them.
    for _, later in zip(range(sum(first) // half + len(first)), cycle(arrivals), strict=False):
        lefts += later
        lefts = [left - got for left, got in zip(lefts, share(lefts, budget=budget), strict=True)]
    assert lefts[: len(first)] == [0] * len(first)
