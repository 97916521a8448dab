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
