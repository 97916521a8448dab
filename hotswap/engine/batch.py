"""One forward pass over several texts: their new tokens laid end to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hotswap.engine.kv import KvCache

__all__ = ["Batch", "Segment", "Work", "make_batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """New tokens of one text, to be appended to its ``kv``.

    ``prompt_length`` decides the frequencies of dynamic and long rope: a token of
    the prompt sees the whole prompt, a later one sees itself as the end.
    """

    kv: KvCache
    tokens: Sequence[int]
    prompt_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Rows ``start:stop`` of the batch belong to ``kv``; ``mask`` ``[new x total]`` bool,
    None where every new token may see everything or only the causal order holds."""

    kv: KvCache
    start: int
    stop: int
    mask: torch.Tensor | None

    @property
    def total(self) -> int:
        """Tokens of the text once the new ones are in."""
        return self.kv.length + self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """``tokens``, ``positions`` and ``lengths`` are ``[tokens]`` int64; ``ends`` ``[texts]``
    are the rows of each text's last token."""

    tokens: torch.Tensor
    positions: torch.Tensor
    lengths: torch.Tensor
    ends: torch.Tensor
    segments: tuple[Segment, ...]

    def advance(self) -> None:
        """Count the new tokens into every text's KV, after the last layer."""
        for segment in self.segments:
            segment.kv.advance(segment.stop - segment.start)


def make_batch(works: Sequence[Work], device: torch.device) -> Batch:
    """Lay ``works`` end to end and make room in their KV."""
    tokens: list[int] = []
    positions: list[int] = []
    lengths: list[int] = []
    segments: list[Segment] = []
    for work in works:
        past, new = work.kv.length, len(work.tokens)
        work.kv.reserve(past + new)
        segments.append(
            Segment(
                kv=work.kv,
                start=len(tokens),
                stop=len(tokens) + new,
                mask=_mask(past, new, device) if past and new > 1 else None,
            )
        )
        tokens.extend(work.tokens)
        positions.extend(range(past, past + new))
        lengths.extend(max(at + 1, work.prompt_length) for at in range(past, past + new))
    ends = [segment.stop - 1 for segment in segments]
    packed = torch.tensor([tokens, positions, lengths], dtype=torch.int64).to(device)
    return Batch(
        tokens=packed[0],
        positions=packed[1],
        lengths=packed[2],
        ends=torch.tensor(ends, dtype=torch.int64).to(device),
        segments=tuple(segments),
    )


def _mask(past: int, new: int, device: torch.device) -> torch.Tensor:
    """New token ``i`` sees everything up to and including position ``past + i``."""
    everything = torch.ones(new, past + new, dtype=torch.bool, device=device)
    return everything.tril(diagonal=past)
