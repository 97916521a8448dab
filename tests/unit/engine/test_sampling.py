from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from hotswap.engine.nucleus import nucleus
from hotswap.engine.sampling import Sampler, check_sampling, choose_tokens
from hotswap.seams import SamplingParams

LOGITS = torch.tensor([0.0, 3.0, 1.0, 2.0, -1.0])


def frequencies(**sampling: Any) -> dict[int, float]:
    options: dict[str, Any] = {"temperature": 1.0, "seed": 7, **sampling}
    sampler = Sampler(SamplingParams(**options))
    drawn = Counter(sampler.draw(LOGITS) for _ in range(4000))
    return {token: number / 4000 for token, number in drawn.items()}


def tokens_of(**sampling: Any) -> set[int]:
    """Which are ever drawn: the rarest of LOGITS comes once in 90 draws."""
    sampler = Sampler(SamplingParams(**{"temperature": 1.0, "seed": 7, **sampling}))
    return {sampler.draw(LOGITS) for _ in range(1000)}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    seen = frequencies(temperature=temperature)
    for token, chance in enumerate((LOGITS / temperature).softmax(-1).tolist()):
        assert seen.get(token, 0.0) == pytest.approx(chance, abs=0.03)


def test_top_k_keeps_the_likeliest() -> None:
    seen = frequencies(top_k=2)
    assert set(seen) == {1, 3}
    assert seen[1] == pytest.approx(torch.tensor([3.0, 2.0]).softmax(-1)[0].item(), abs=0.03)
    assert tokens_of(top_k=5) == tokens_of(top_k=-1) == {0, 1, 2, 3, 4}


def test_top_p_keeps_the_token_that_reaches_it() -> None:
    # Chances: 1 is 0.64, 3 is 0.24, 2 is 0.09.
    assert tokens_of(top_p=0.6) == {1}
    assert tokens_of(top_p=0.7) == {1, 3}
    assert tokens_of(top_p=0.9) == {1, 2, 3}


def test_top_p_counts_within_top_k() -> None:
    # Within the first two, 1 has 0.73.
    assert tokens_of(top_k=2, top_p=0.7) == {1}
    assert tokens_of(top_k=2, top_p=0.8) == {1, 3}


def test_a_batch_mixes_greedy_and_drawn() -> None:
    greedy = Sampler(SamplingParams())
    drawn = Sampler(SamplingParams(temperature=1.0, seed=3))
    wanted = Sampler(SamplingParams(temperature=1.0, seed=3))
    rows = torch.stack([LOGITS, LOGITS, LOGITS.flip(0)])
    for _ in range(20):
        tokens = choose_tokens([greedy, drawn, greedy], rows)
        assert tokens == [1, wanted.draw(LOGITS), 3]


def test_any_integer_is_a_seed_and_no_two_are_one() -> None:
    seeds = [sign * 2**power + 1 for power in (0, 31, 32, 63, 64, 70) for sign in (1, -1)]

    def drawn(seed: int) -> tuple[int, ...]:
        sampler = Sampler(SamplingParams(temperature=4.0, seed=seed))
        return tuple(sampler.draw(LOGITS) for _ in range(40))

    assert len({drawn(seed) for seed in seeds}) == len(seeds)
    assert [drawn(seed) for seed in seeds] == [drawn(seed) for seed in seeds]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_without_a_finite_largest_logit_has_no_token(bad: float) -> None:
    greedy, drawn = Sampler(SamplingParams()), Sampler(SamplingParams(temperature=1.0, seed=3))
    broken = LOGITS.clone()
    broken[2] = bad
    assert choose_tokens([greedy, drawn, greedy], torch.stack([broken, broken, LOGITS])) == [
        None,
        None,
        1,
    ]


@pytest.mark.parametrize("vocabulary", [7, 96, 1536, 49152])
def test_of_the_likeliest_the_first(vocabulary: int) -> None:
    rows = torch.randn(6, vocabulary, generator=torch.Generator().manual_seed(4))
    rows[1, [vocabulary // 3, vocabulary // 2, -1]] = 9.0
    rows[2] = -float("inf")
    rows[2, -1] = -3e38
    rows[3] = 0.0
    rows[4, vocabulary // 2] = float("nan")
    rows[5, vocabulary // 2] = float("inf")
    tokens = choose_tokens([Sampler(SamplingParams())] * 6, rows)
    first = int(rows[0].argmax())
    assert tokens == [first, vocabulary // 3, vocabulary - 1, 0, None, None]


@pytest.mark.parametrize("top_p", [1e-46, 5e-324, 1e-30])
@pytest.mark.parametrize("top_k", [0, 3])
def test_the_smallest_top_p_keeps_the_likeliest(top_p: float, top_k: int) -> None:
    sampler = Sampler(SamplingParams(temperature=1.0, seed=7, top_p=top_p, top_k=top_k))
    assert {sampler.draw(LOGITS) for _ in range(20)} == {1}


@pytest.mark.parametrize("temperature", [1e-5, 1.0, 1e30, 1e300])
@pytest.mark.parametrize("low", [-3e38, -float("inf"), 0.0])
@pytest.mark.parametrize("high", [3e38, 2.0])
def test_no_finite_largest_logit_is_too_much(temperature: float, low: float, high: float) -> None:
    sampler = Sampler(SamplingParams(temperature=temperature, seed=7, top_p=0.9))
    logits = torch.tensor([low, high, low])
    assert {sampler.draw(logits) for _ in range(20)} <= {0, 1, 2}
    if low == -float("inf"):
        assert sampler.draw(logits) == 1


def test_a_draw_that_fails_is_its_own_row_s(monkeypatch: pytest.MonkeyPatch) -> None:
    greedy, drawn = Sampler(SamplingParams()), Sampler(SamplingParams(temperature=1.0, seed=3))

    def fail(*_arguments: object, **_options: object) -> torch.Tensor:
        raise RuntimeError("no draw")

    monkeypatch.setattr(torch, "searchsorted", fail)
    first, second, third = choose_tokens([greedy, drawn, greedy], LOGITS.expand(3, -1))
    assert (first, third) == (1, 1)
    assert isinstance(second, RuntimeError)


def chances_of(logits: torch.Tensor, **sampling: Any) -> dict[int, float]:
    """The exact chances of each token, by the rules, in double precision."""
    params = SamplingParams(**{"temperature": 1.0, **sampling})
    chances = (logits.double() / params.temperature).softmax(-1)
    ranked = chances.sort(descending=True).indices.tolist()
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    total = float(chances[ranked].sum())
    kept: dict[int, float] = {}
    before = 0.0
    for token in ranked:
        chance = float(chances[token]) / total
        if before < params.top_p and chance >= params.min_p * float(chances[ranked[0]]) / total:
            kept[token] = chance
        before += chance
    whole = sum(kept.values())
    return {token: chance / whole for token, chance in kept.items()}


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 4.0},
        {"top_k": 7},
        {"top_p": 0.6},
        {"min_p": 0.2},
        {"top_k": 9, "top_p": 0.8, "min_p": 0.05, "temperature": 1.3},
    ],
)
@pytest.mark.parametrize("vocabulary", [24, 3000])
def test_draws_have_the_exact_chances(sampling: dict[str, Any], vocabulary: int) -> None:
    logits = 2.0 * torch.randn(vocabulary, generator=torch.Generator().manual_seed(1))
    wanted = chances_of(logits, **sampling)
    sampler = Sampler(SamplingParams(**{"temperature": 1.0, "seed": 11, **sampling}))
    draws = 2000
    seen = Counter(sampler.draw(logits) for _ in range(draws))
    assert set(seen) <= set(wanted)
    # Chi-squared over what is likely enough to count, the rest as one.
    likely = [token for token, chance in wanted.items() if chance * draws >= 10]
    expected = [wanted[token] * draws for token in likely]
    observed = [float(seen[token]) for token in likely]
    if draws - sum(expected) >= 10:
        observed.append(draws - sum(observed))
        expected.append(draws - sum(expected))
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    freedom = max(len(expected) - 1, 1)
    assert statistic < freedom + 4.5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
def test_a_nucleus_is_the_same_however_it_is_found(top_p: float) -> None:
    # With few tokens all are sorted; the same ones among many that have no chance are picked.
    few = torch.linspace(-3, 3, 50)
    many = torch.cat([few, torch.full((5000,), -float("inf"))])
    one, other = (Sampler(SamplingParams(temperature=1.0, seed=2, top_p=top_p)) for _ in "ab")
    assert [one.draw(few) for _ in range(200)] == [other.draw(many) for _ in range(200)]


@pytest.mark.parametrize("top_p", [0.3, 0.7, 0.9, 0.99, 0.999999])
@pytest.mark.parametrize("spread", [0.01, 0.5, 2.0, 6.0])
def test_a_nucleus_has_the_likeliest_that_reach_its_chance(top_p: float, spread: float) -> None:
    logits = spread * torch.randn(4000, generator=torch.Generator().manual_seed(3))
    chances = logits.softmax(-1)
    kept, tokens = nucleus(chances, top_p)
    assert kept.tolist() == chances[tokens].tolist()
    assert len(set(tokens.tolist())) == len(tokens)
    ranked = chances.double().sort(descending=True).values
    wanted = int((ranked.cumsum(-1) - ranked < top_p).sum())
    # Where sums in float32 and in float64 disagree about the last ones.
    tolerance = 2 if top_p < 0.999 else 40
    assert abs(len(tokens) - wanted) <= tolerance
    assert kept.min() >= ranked[min(wanted + tolerance, 3999)] - 1e-12


@pytest.mark.parametrize("top_p", [1e-46, 5e-324, 1e-30, 0.5, 1 - 1e-9])
@pytest.mark.parametrize("size", [1, 2, 5000])
def test_a_nucleus_is_never_empty(size: int, top_p: float) -> None:
    chances = torch.arange(1, size + 1, dtype=torch.float32)
    kept, tokens = nucleus(chances / chances.sum(), top_p)
    assert len(kept) == len(tokens) >= 1
    assert size - 1 in tokens


def test_a_nucleus_of_one_certain_token() -> None:
    kept, tokens = nucleus(torch.tensor([0.0, 1.0, 0.0]), 0.9)
    assert (kept.tolist(), tokens.tolist()) == ([1.0], [1])


def test_a_nucleus_takes_no_more_of_equals_than_it_needs() -> None:
    kept, tokens = nucleus(torch.full((5000,), 1 / 5000), 0.9)
    assert abs(len(tokens) - 4500) <= 2
    assert kept.sum().item() == pytest.approx(0.9, abs=1e-3)


def test_a_nucleus_of_everything_there_is() -> None:
    chances = torch.cat([torch.full((2000,), 1 / 2000), torch.zeros(10)])
    kept, _ = nucleus(chances, 1 - 1e-9)
    assert kept.sum().item() == pytest.approx(1.0, abs=1e-5)


def test_a_nucleus_of_more_tokens_than_usual() -> None:
    flat = torch.zeros(5000)
    sampler = Sampler(SamplingParams(temperature=1.0, seed=2, top_p=0.9))
    drawn = {sampler.draw(flat) for _ in range(2000)}
    assert 1200 < len(drawn) <= 4500


def test_min_p_counts_from_the_likeliest() -> None:
    # Chances: 1 is 0.64, 3 is 0.24, 2 is 0.09.
    assert tokens_of(min_p=1.0) == {1}
    assert tokens_of(min_p=0.3) == {1, 3}
    assert tokens_of(min_p=0.1) == {1, 2, 3}


def test_what_else_is_drawn_takes_nothing_from_a_seed() -> None:
    params = SamplingParams(temperature=1.0, seed=5)
    alone, beside = Sampler(params), Sampler(params)
    other = Sampler(SamplingParams(temperature=2.0, seed=6))
    for _ in range(30):
        (wanted,) = choose_tokens([alone], LOGITS[None])
        *_, token = choose_tokens([other, other, beside], LOGITS.expand(3, -1))
        assert token == wanted


def test_penalties_lower_what_was_put_out() -> None:
    params = SamplingParams(
        frequency_penalty=0.5, presence_penalty=0.25, repetition_penalty=2.0, max_new_tokens=9
    )
    sampler = Sampler(params)
    for token in (1, 1, 4):
        sampler.push(token)
    logits = LOGITS.clone()
    # Token 1 twice: (3 - 2 * 0.5 - 0.25) / 2; token 4 once: (-1 - 0.5 - 0.25) * 2.
    assert sampler.choose(logits) == 3
    assert logits.tolist() == pytest.approx([0.0, 0.875, 1.0, 2.0, -3.5])


def test_a_penalty_makes_greedy_move_on() -> None:
    sampler = Sampler(SamplingParams(presence_penalty=1.5))
    tokens = [choose_tokens([sampler], LOGITS[None])[0] for _ in range(4)]
    assert tokens == [1, 3, 1, 1]
    assert LOGITS.tolist() == [0.0, 3.0, 1.0, 2.0, -1.0]


def test_the_smallest_repetition_penalty_leaves_a_largest_logit() -> None:
    sampler = Sampler(SamplingParams(repetition_penalty=5e-324, temperature=1.0, seed=1))
    sampler.push(1)
    assert choose_tokens([sampler], LOGITS[None]) == [1]


def test_no_stop_before_there_are_enough_tokens() -> None:
    params = SamplingParams(min_new_tokens=2, max_new_tokens=9)
    sampler = Sampler(params, stop_ids=frozenset({1, 3, -5, 99}))
    assert [choose_tokens([sampler], LOGITS[None])[0] for _ in range(4)] == [2, 2, 1, 1]
    every_one = Sampler(params, stop_ids=frozenset(range(5)))
    assert choose_tokens([every_one], LOGITS[None]) == [1]


@pytest.mark.parametrize(
    ("sampling", "named"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"min_new_tokens": -1}, "min_new_tokens"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens is 9"),
        ({"min_p": 1.5}, "min_p"),
        ({"min_p": float("nan")}, "min_p"),
        ({"frequency_penalty": 2.5}, "frequency_penalty"),
        ({"presence_penalty": float("nan")}, "presence_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": 2.1}, "repetition_penalty"),
    ],
)
def test_parameters_that_mean_nothing(sampling: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        check_sampling(SamplingParams(**sampling))


@pytest.mark.parametrize("vocabulary", [8, 320, 49152])
def test_a_step_in_which_no_prompt_ends_chooses_nothing(vocabulary: int) -> None:
    assert choose_tokens([], torch.empty(0, vocabulary)) == []
