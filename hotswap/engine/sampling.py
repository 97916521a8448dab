"""From logits to a token: greedy, or drawn with random numbers of the request's own."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from random import Random

import torch

from hotswap.engine.nucleus import nucleus
from hotswap.engine.penalties import Penalties, check_penalties
from hotswap.seams import SamplingParams

__all__ = ["Sampler", "check_sampling", "choose_tokens"]

# Below it the softmax is one-hot, and the division overflows: that is greedy.
_COLDEST = 1e-5
# Above it every finite difference is lost already.
_HOTTEST = torch.finfo(torch.float32).max
# Common vocabularies are a multiple of it, or of a power of two that is not far below.
_BLOCK = 512
_LEAST_BLOCK = 32


def check_sampling(params: SamplingParams) -> None:
    """Raises: ValueError for parameters that mean nothing."""
    if params.max_new_tokens < 0:
        raise ValueError(f"max_new_tokens is {params.max_new_tokens}, wanted 0 or more")
    if not 0 <= params.min_new_tokens <= params.max_new_tokens:
        raise ValueError(
            f"min_new_tokens is {params.min_new_tokens}, wanted 0 to max_new_tokens, "
            f"which is {params.max_new_tokens}"
        )
    if not 0.0 <= params.temperature < float("inf"):
        raise ValueError(f"temperature is {params.temperature}, wanted 0 or more")
    if not 0.0 < params.top_p <= 1.0:
        raise ValueError(f"top_p is {params.top_p}, wanted more than 0 and at most 1")
    if params.top_k < -1:
        raise ValueError(f"top_k is {params.top_k}, wanted a count, or 0 or -1 for all tokens")
    if not 0.0 <= params.min_p <= 1.0:
        raise ValueError(f"min_p is {params.min_p}, wanted 0 to 1")
    if any(not text for text in params.stop):
        raise ValueError("stop has an empty string in it, which would match at once; leave it out")
    check_penalties(params)


class Sampler:
    """Chooses the tokens of one request; its draws go on where they were after a retraction.

    One number is drawn a token, from a source that belongs to the request: what else
    is in the batch takes nothing from it. ``stop_ids`` are not chosen before there are
    ``min_new_tokens``.
    """

    def __init__(self, params: SamplingParams, *, stop_ids: Set[int] = frozenset()) -> None:
        self._params = params
        self._penalties = Penalties(params)
        self._stop_ids = stop_ids
        self._unstoppable = params.min_new_tokens if stop_ids else 0
        # As a text: no two integers share their draws. torch's generator of a CPU looks at
        # 32 bits of a seed, and Random at the absolute value of an integer.
        self._random = Random(None if params.seed is None else str(params.seed))

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self._params.temperature < _COLDEST or self._params.top_k == 1

    @property
    def temperature(self) -> float:
        """What logits are divided by; 1 for greedy, which divides by nothing."""
        return 1.0 if self.is_greedy else min(self._params.temperature, _HOTTEST)

    @property
    def takes_the_likeliest(self) -> bool:
        """Whether the next token is the one with the largest logit, as it comes."""
        return self.is_greedy and not self._penalties.has_effect and self._unstoppable <= 0

    def choose(self, logits: torch.Tensor) -> int:
        """A token from ``[vocabulary]`` float32 on the CPU, which is written to."""
        self._penalties.apply(logits)
        if self._unstoppable > 0:
            self._rule_out_stops(logits)
        return int(logits.argmax()) if self.is_greedy else self.draw(logits)

    def push(self, token_id: int) -> None:
        """Note that ``token_id`` has been put out."""
        self._unstoppable -= 1
        self._penalties.push(token_id)

    def draw(self, logits: torch.Tensor) -> int:
        """Draw from ``[vocabulary]`` float32 on the CPU: temperature, top-k, top-p, min-p."""
        # The same chances, and neither the coldest nor the hottest leaves float32.
        scaled = (logits - logits.max()) / self.temperature
        tokens: torch.Tensor | None = None
        if 0 < self._params.top_k < scaled.shape[0]:
            scaled, tokens = scaled.topk(self._params.top_k)
        chances = scaled.softmax(-1)
        if self._params.top_p < 1.0:
            chances, kept = nucleus(chances, self._params.top_p)
            tokens = kept if tokens is None else tokens[kept]
        if self._params.min_p > 0.0:
            chances = chances.masked_fill(chances < self._params.min_p * chances.max(), 0.0)
        if tokens is not None:
            # Ties may come in any order: that of the vocabulary is always the same.
            tokens, order = tokens.sort()
            chances = chances[order]
        index = self._index(chances)
        return index if tokens is None else int(tokens[index])

    def _index(self, chances: torch.Tensor) -> int:
        """One with a chance that is not zero; ``chances`` need not add up to 1."""
        reached = chances.cumsum(-1, dtype=torch.float64)
        total = float(reached[-1])
        drawn = self._random.random() * total
        return int(torch.searchsorted(reached, min(drawn, math.nextafter(total, 0.0)), right=True))

    def _rule_out_stops(self, logits: torch.Tensor) -> None:
        ids = [token for token in self._stop_ids if 0 <= token < logits.shape[0]]
        # Where every token stops there is still one to choose; the stop rule goes on.
        if len(ids) < logits.shape[0]:
            logits[ids] = -float("inf")


def choose_tokens(
    samplers: Sequence[Sampler], logits: torch.Tensor
) -> list[int | Exception | None]:
    """One token for each row of ``[texts x vocabulary]`` float32; waits for the device.

    None for a row that has no largest finite logit: the weights are not numbers. An
    error where a draw failed: it is that row's alone. Nothing of no rows, as when every
    text of a step is still in the middle of its prompt.
    """
    if not samplers:
        return []
    largest, likeliest = _largest(logits)
    chosen: list[int | Exception | None] = likeliest.tolist()
    particular: list[int] = []
    for row, is_finite in enumerate(largest.isfinite().tolist()):
        if not is_finite:
            chosen[row] = None
        elif not samplers[row].takes_the_likeliest:
            particular.append(row)
    if particular:
        # A copy, also on the CPU: what others read of these logits stays as it is.
        for row, copy in zip(particular, logits[particular].cpu(), strict=True):
            chosen[row] = _chosen(samplers[row], copy)
    for sampler, token in zip(samplers, chosen, strict=True):
        if isinstance(token, int):
            sampler.push(token)
    return chosen


def _largest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``max(-1)`` of ``[texts x vocabulary]``: of the largest ones the first.

    A CPU finds a largest number many times faster than where it is: so first the largest of
    each block of the vocabulary, and then the place in one block.
    """
    block = math.gcd(logits.shape[1], _BLOCK)
    if logits.device.type != "cpu" or block < _LEAST_BLOCK:
        largest, places = logits.max(-1)
        return largest, places
    blocks = logits.reshape(logits.shape[0], -1, block)
    largest, at = blocks.amax(-1).max(-1)
    rows = torch.arange(logits.shape[0])
    return largest, at * block + blocks[rows, at].argmax(-1)


def _chosen(sampler: Sampler, logits: torch.Tensor) -> int | Exception:
    try:
        return sampler.choose(logits)
    except Exception as error:
        return error
