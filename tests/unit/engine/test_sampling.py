from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from hotswap.engine.sampling import Sampler, choose_tokens
from hotswap.seams import SamplingParams

LOGITS = torch.tensor([0.0, 3.0, 1.0, 2.0, -1.0])


def frequencies(**sampling: Any) -> dict[int, float]:
    options: dict[str, Any] = {"temperature": 1.0, "seed": 7, **sampling}
    sampler = Sampler(SamplingParams(**options))
    drawn = Counter(sampler.draw(LOGITS) for _ in range(4000))
    return {token: number / 4000 for token, number in drawn.items()}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    seen = frequencies(temperature=temperature)
    for token, chance in enumerate((LOGITS / temperature).softmax(-1).tolist()):
        assert seen.get(token, 0.0) == pytest.approx(chance, abs=0.03)


def test_top_k_keeps_the_likeliest() -> None:
    seen = frequencies(top_k=2)
    assert set(seen) == {1, 3}
    assert seen[1] == pytest.approx(torch.tensor([3.0, 2.0]).softmax(-1)[0].item(), abs=0.03)
    assert set(frequencies(top_k=5)) == set(frequencies(top_k=-1)) == {0, 1, 2, 3, 4}


def test_top_p_keeps_the_token_that_reaches_it() -> None:
    # Chances: 1 is 0.64, 3 is 0.24, 2 is 0.09.
    assert set(frequencies(top_p=0.6)) == {1}
    assert set(frequencies(top_p=0.7)) == {1, 3}
    assert set(frequencies(top_p=0.9)) == {1, 2, 3}


def test_top_p_counts_within_top_k() -> None:
    # Within the first two, 1 has 0.73.
    assert set(frequencies(top_k=2, top_p=0.7)) == {1}
    assert set(frequencies(top_k=2, top_p=0.8)) == {1, 3}


def test_a_batch_mixes_greedy_and_drawn() -> None:
    greedy = Sampler(SamplingParams())
    drawn = Sampler(SamplingParams(temperature=1.0, seed=3))
    wanted = Sampler(SamplingParams(temperature=1.0, seed=3))
    rows = torch.stack([LOGITS, LOGITS, LOGITS.flip(0)])
    for _ in range(20):
        tokens = choose_tokens([greedy, drawn, greedy], rows)
        assert tokens == [1, wanted.draw(LOGITS), 3]


def test_any_integer_is_a_seed() -> None:
    for seed in (0, -1, 2**63, 2**70):
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed))
        assert 0 <= sampler.draw(LOGITS) < 5


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
