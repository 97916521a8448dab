"""From logits to a token: greedy, or drawn with a generator of the request's own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hotswap.seams import SamplingParams

__all__ = ["Sampler", "check_sampling", "choose_tokens"]

# Below it the softmax is one-hot, and the division overflows: that is greedy.
_COLDEST = 1e-5
# Above it every finite difference is lost already.
_HOTTEST = torch.finfo(torch.float32).max


def check_sampling(params: SamplingParams) -> None:
    """Raises: ValueError for parameters that mean nothing."""
    if params.max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {params.max_new_tokens}, wanted at least 1")
    if not 0.0 <= params.temperature < float("inf"):
        raise ValueError(f"temperature is {params.temperature}, wanted 0 or more")
    if not 0.0 < params.top_p <= 1.0:
        raise ValueError(f"top_p is {params.top_p}, wanted more than 0 and at most 1")
    if params.top_k < -1:
        raise ValueError(f"top_k is {params.top_k}, wanted a count, or 0 or -1 for all tokens")
    if any(not text for text in params.stop):
        raise ValueError("stop has an empty string in it, which would match at once; leave it out")


class Sampler:
    """Chooses the tokens of one request; its draws go on where they were after a retraction."""

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._generator: torch.Generator | None = None
        if not self.is_greedy:
            self._generator = torch.Generator()
            if params.seed is None:
                self._generator.seed()
            else:
                self._generator.manual_seed(params.seed & (2**64 - 1))

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self._params.temperature < _COLDEST or self._params.top_k == 1

    def draw(self, logits: torch.Tensor) -> int:
        """Draw from ``[vocabulary]`` float32 on the CPU: temperature, then top-k, then top-p."""
        # The same chances, and neither the coldest nor the hottest leaves float32.
        scaled = (logits - logits.max()) / min(self._params.temperature, _HOTTEST)
        tokens: torch.Tensor | None = None
        if 0 < self._params.top_k < scaled.shape[0]:
            scaled, tokens = scaled.topk(self._params.top_k)
        elif self._params.top_p < 1.0:
            scaled, tokens = scaled.sort(descending=True)
        chances = scaled.softmax(-1)
        if self._params.top_p < 1.0:
            # A token stays while those before it have not reached top_p.
            is_past = chances.cumsum(-1) - chances >= self._params.top_p
            # The first always does, also for a top_p that is zero as a float32.
            is_past[0] = False
            chances = chances.masked_fill(is_past, 0.0)
        index = int(torch.multinomial(chances, 1, generator=self._generator))
        return index if tokens is None else int(tokens[index])


def choose_tokens(
    samplers: Sequence[Sampler], logits: torch.Tensor
) -> list[int | Exception | None]:
    """One token for each row of ``[texts x vocabulary]`` float32; waits for the device.

    None for a row that has no largest finite logit: the weights are not numbers. An
    error where a draw failed: it is that row's alone.
    """
    largest, likeliest = logits.max(-1)
    chosen: list[int | Exception | None] = likeliest.tolist()
    for row, (sampler, is_finite) in enumerate(
        zip(samplers, largest.isfinite().tolist(), strict=True)
    ):
        if not is_finite:
            chosen[row] = None
        elif not sampler.is_greedy:
            try:
                chosen[row] = sampler.draw(logits[row].cpu())
            except Exception as error:
                chosen[row] = error
    return chosen
