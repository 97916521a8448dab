"""The rate of streams that decode together, as the benchmark counts it."""

from __future__ import annotations

import pytest

from contrib.bench.generation_side import joint_rate, prompts


def test_only_the_time_when_all_decode_counts() -> None:
    # The second begins at 2 and the first ends at 4: tokens at 3 and 4 of each.
    assert joint_rate([[0.0, 1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0]]) == 2.0


def test_streams_that_took_turns_have_no_rate() -> None:
    with pytest.raises(ValueError, match="no moment at which every stream decoded"):
        joint_rate([[0.0, 1.0], [1.0, 2.0]])


def test_prompts_differ_from_the_first_token_on() -> None:
    assert len({prompt[0] for prompt in prompts(32)}) == 32
