"""What the generation benchmarks count: joint rates, steps, gaps, and which ways go on."""

from __future__ import annotations

import os

import pytest

from contrib.bench.__main__ import chosen
from contrib.bench.generation_engine import near_best
from contrib.bench.generation_http import steps
from contrib.bench.generation_side import joint_rate, prompts
from contrib.bench.generation_swap import SwapSeen, longest_gap, widest
from contrib.bench.neighbours import Moment
from contrib.bench.turns import turns


def test_only_the_time_when_all_decode_counts() -> None:
    # The second begins at 2 and the first ends at 4: tokens at 3 and 4 of each.
    assert joint_rate([[0.0, 1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0]]) == 2.0


def test_streams_that_took_turns_have_no_rate() -> None:
    with pytest.raises(ValueError, match="no moment at which every stream decoded"):
        joint_rate([[0.0, 1.0], [1.0, 2.0]])


def test_prompts_differ_from_the_first_token_on() -> None:
    every = [*prompts(32), *prompts(32, first=20_000, length=37)]

    assert len({prompt[0] for prompt in every}) == 64
    assert {len(prompt) for prompt in every} == {32, 37}


def test_the_first_steps_do_not_count() -> None:
    assert steps([[0.0, 9.0, 20.0, 21.0, 23.0], [0.0, 9.0, 30.0, 33.0]]) == [1.0, 2.0, 3.0]


def test_the_gap_is_that_of_the_stream_that_waited_longest() -> None:
    calm = [0.0, 1.0, 2.0, 3.0, 4.0]
    late = [0.0, 1.0, 2.5, 4.0, 9.0]

    # From 2.6 to 3.5: of the late stream the gaps before and after do not overlap it.
    assert longest_gap([calm, late], 2.6, 3.5) == 1.5


def test_of_the_longest_gap_it_is_known_when_it_was() -> None:
    assert widest([[0.0, 1.0, 2.0, 3.0], [0.0, 1.2, 2.9, 3.0]], 0.5, 2.5) == (1.2, 2.9)


def test_a_gap_that_spans_the_whole_swap_counts() -> None:
    assert longest_gap([[0.0, 5.0]], 2.0, 3.0) == 5.0


@pytest.mark.parametrize("other", [[0.0, 1.0], [0.0, 1.0, 2.5, 2.9], [2.5, 5.0], []])
def test_a_stream_that_did_not_live_through_the_swap_says_nothing(other: list[float]) -> None:
    with pytest.raises(ValueError, match="outlive the swap"):
        longest_gap([[0.0, 5.0], other], 2.0, 3.0)


def test_pause_and_recomputed_texts_are_allowed_for() -> None:
    swap = SwapSeen(
        step_ms=100.0,
        gap_ms=1000.0,
        gap_at_ms=150.0,
        window_ms=1200.0,
        others_ms=10.0,
        paused_ms=50.0,
        staged_ms=200.0,
        recompute_ms=800.0,
    )

    assert swap.extra_steps == 1.5


def test_what_others_had_is_neither_ones_own_nor_negative() -> None:
    before = Moment(busy_s=100.0, own_s=40.0, stolen_s=5.0)

    # Of 4 seconds 3 were our own, and the host had a quarter of one.
    after = Moment(busy_s=104.0, own_s=43.0, stolen_s=5.25)
    assert after.others_s(before) == 1.25
    # The kernel adds up a process and the machine at different moments.
    early = Moment(busy_s=101.0, own_s=41.25, stolen_s=5.0)
    assert early.others_s(before) == 0.0


def test_the_machine_has_been_busy_for_longer_than_this_process() -> None:
    now = Moment.now(os.getpid())

    assert now.busy_s > 0
    assert now.own_s > 0
    assert Moment.now(os.getpid()).busy_s >= now.busy_s


def test_ways_near_the_best_go_on() -> None:
    ways: list[tuple[tuple[str, object], ...]] = [(("threads", count),) for count in (1, 2, 3)]
    slow, good, best = ways

    # What counts of each is the better of its trials.
    rates = {slow: [7.9, 7.0], good: [1.0, 8.0], best: [10.0, 9.0]}

    assert near_best(ways, rates) == [good, best]


def test_a_name_stands_for_all_that_begin_with_it() -> None:
    parts = ["generation_engine", "generation_http", "generation_swap"]

    assert chosen(["generation"]) == parts
    assert chosen(["generation_http", "updates", "generation"]) == [
        "generation_http",
        "updates",
        "generation_engine",
        "generation_swap",
    ]
    assert set(parts) < set(chosen([]))


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="no benchmark gen; there are updates, "):
        chosen(["gen"])


@pytest.mark.parametrize(("rounds", "wanted"), [(2, 2), (4, 4), (9, 6)])
def test_no_round_begins_past_the_time(rounds: int, wanted: int) -> None:
    # The clock goes on by one whenever somebody looks.
    now = iter(range(100))

    assert list(turns(rounds, within_s=3, least=3, clock=lambda: next(now))) == list(range(wanted))


def test_the_least_rounds_take_place_however_long_they_are() -> None:
    now = iter(range(0, 10_000, 100))

    assert list(turns(7, within_s=1, least=3, clock=lambda: next(now))) == [0, 1, 2]
