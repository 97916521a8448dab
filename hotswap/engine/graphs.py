"""CUDA graphs of decode steps: what lies between two attentions is one launch.

A graph replays kernels on the addresses that it was captured with. Parameters keep
theirs through every update, so what was captured once holds for all weights. Keys and
values do not: texts come and go, so attention stays outside, and a pass is one piece
before the first attention, one between each two, and one after the last.

Pieces are captured for batch sizes of powers of two; a smaller batch is padded with
tokens that no attention reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hotswap.engine.attention import TextAttention
from hotswap.engine.batch import Batch
from hotswap.engine.model import CausalLm, Decoder
from hotswap.engine.rope_parameters import RopeType

__all__ = ["Capture", "DecodeGraphs", "graph_sizes", "use_cuda_graphs"]

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Gets a piece of work on fixed tensors, and returns what does that work again."""

_WARM_UPS = 2


def use_cuda_graphs(model: CausalLm, *, max_running: int) -> bool:
    """Capture decode steps of ``model`` where it lives on CUDA; whether that was so.

    Dynamic rope is left out: its frequencies change with the text.
    """
    device = model.lm_head.weight.device
    if device.type != "cuda" or model.config.rope.rope_type is RopeType.DYNAMIC:
        return False
    with torch.inference_mode(), torch.cuda.device(device):
        model.model.graphs = DecodeGraphs(
            model.model, sizes=graph_sizes(max_running), capture=_on_cuda()
        )
    return True


def graph_sizes(max_running: int) -> list[int]:
    """Powers of two, the last of which holds ``max_running``."""
    return [2**power for power in range((max_running - 1).bit_length() + 1)]


def _on_cuda() -> Capture:
    cuda: Any = torch.cuda  # half of it has no types
    pool = cuda.graph_pool_handle()

    def capture(work: Callable[[], None]) -> Callable[[], None]:
        # Libraries set themselves up in their first calls, which cannot be captured.
        aside = cuda.Stream()
        aside.wait_stream(cuda.current_stream())
        with cuda.stream(aside):
            for _ in range(_WARM_UPS):
                work()
        cuda.current_stream().wait_stream(aside)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, pool=pool):
            work()
        replay: Callable[[], None] = graph.replay
        return replay

    return capture


class DecodeGraphs:
    """Captured steps of every size. One forward pass at a time."""

    def __init__(self, decoder: Decoder, *, sizes: list[int], capture: Capture) -> None:
        # The largest first: the others then find its memory in the pool.
        self._steps = [
            _Step(decoder, size=size, capture=capture) for size in sorted(sizes, reverse=True)
        ][::-1]

    def fit(self, batch: Batch) -> bool:
        """Whether every text brings one token, and no more texts than were foreseen."""
        count = len(batch.segments)
        return batch.tokens.shape[0] == count and count <= self._steps[-1].size

    def run(self, batch: Batch, attention: TextAttention) -> torch.Tensor:
        """``[tokens x hidden]`` before the last norm; holds until the next run."""
        count = len(batch.segments)
        step = next(step for step in self._steps if step.size >= count)
        return step.run(batch, attention, count)


class _Step:
    """The pieces of one size, and the fixed tensors that they read and write."""

    def __init__(self, decoder: Decoder, *, size: int, capture: Capture) -> None:
        self.size = size
        self._decoder = decoder
        self._inputs = decoder.embed_tokens.weight.new_zeros((3, size), dtype=torch.int64)
        # Shapes and dtypes are those that the eager pass has.
        self._hidden, self._rotation = decoder.begin(*self._inputs)
        self._queries, self._fresh = decoder.blocks[0].before(self._hidden, self._rotation)
        self._queries = self._queries.clone(memory_format=torch.contiguous_format)
        self._seen = torch.zeros_like(self._queries)
        self._pieces = [capture(work) for work in self._works()]

    def _works(self) -> list[Callable[[], None]]:
        count = len(self._decoder.blocks)
        return [self._begin, *(self._between(layer) for layer in range(1, count)), self._end]

    def run(self, batch: Batch, attention: TextAttention, count: int) -> torch.Tensor:
        """See ``DecodeGraphs.run``; ``count`` texts."""
        for fixed, given in zip(
            self._inputs, (batch.tokens, batch.positions, batch.lengths), strict=True
        ):
            fixed[:count] = given
        for layer, piece in enumerate(self._pieces[:-1]):
            piece()
            self._seen[:count] = attention.attend(layer, self._queries[:count], self._fresh[:count])
        self._pieces[-1]()
        return self._hidden[:count]

    def _begin(self) -> None:
        hidden, rotation = self._decoder.begin(*self._inputs)
        self._hidden.copy_(hidden)
        for fixed, made in zip(self._rotation, rotation, strict=True):
            fixed.copy_(made)
        self._ask(0)

    def _between(self, layer: int) -> Callable[[], None]:
        def work() -> None:
            self._hidden.copy_(self._decoder.blocks[layer - 1].after(self._hidden, self._seen))
            self._ask(layer)

        return work

    def _end(self) -> None:
        self._hidden.copy_(self._decoder.blocks[-1].after(self._hidden, self._seen))

    def _ask(self, layer: int) -> None:
        queries, fresh = self._decoder.blocks[layer].before(self._hidden, self._rotation)
        self._queries.copy_(queries)
        self._fresh.copy_(fresh)
