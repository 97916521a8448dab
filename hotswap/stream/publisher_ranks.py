"""The ranks that publish one version together, and how they agree.

Rule: whatever fails on one rank fails on all of them, at the same step; nobody is left
waiting. Messages are JSON: nothing that a rank sends can run anything on another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hotswap.stream.errors import StreamError

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

__all__ = ["Alone", "Ranks", "TorchRanks", "agreed"]

Message = Mapping[str, Any]
_Result = TypeVar("_Result")


class Ranks(Protocol):
    """Who publishes."""

    @property
    def rank(self) -> int:
        """This process among them, from 0 on; 0 writes the index."""
        ...

    def gather(self, message: Message) -> list[Message]:
        """What every rank said, by rank. Each of them has to call it."""
        ...


class Alone:
    """One process."""

    rank: int = 0

    def __repr__(self) -> str:
        return "<Alone>"

    def gather(self, message: Message) -> list[Message]:
        """``message`` alone."""
        return [message]


class TorchRanks:
    """The members of a process group of torch.distributed; None for the default one."""

    def __init__(self, group: ProcessGroup | None = None) -> None:
        import torch.distributed as dist

        self._group = group
        self.rank: int = dist.get_rank(group)
        self._world = dist.get_world_size(group)

    def __repr__(self) -> str:
        return f"<TorchRanks {self.rank} of {self._world}>"

    def gather(self, message: Message) -> list[Message]:
        """What every rank said, by rank. Raises: RuntimeError when one is gone."""
        import torch
        import torch.distributed as dist

        text = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        device = self._device()
        mine = torch.tensor([len(text)], device=device)
        lengths = [torch.empty_like(mine) for _ in range(self._world)]
        dist.all_gather(lengths, mine, group=self._group)
        room = int(max(lengths))
        padded = torch.zeros(room, dtype=torch.uint8, device=device)
        padded[: len(text)] = text
        texts = [torch.empty_like(padded) for _ in range(self._world)]
        dist.all_gather(texts, padded, group=self._group)
        return [
            json.loads(one[: int(length)].cpu().numpy().tobytes())
            for one, length in zip(texts, lengths, strict=True)
        ]

    def _device(self) -> torch.device:
        import torch
        import torch.distributed as dist

        name = dist.get_backend(self._group)
        return torch.device("cuda" if name == "nccl" else "cpu")


def agreed(
    ranks: Ranks, work: Callable[[], _Result], *, told: Callable[[_Result], Message]
) -> tuple[_Result, list[Message]]:
    """Do ``work`` on every rank, and what ``told`` says of each rank's result, by rank.

    Raises: what ``work`` raised here; StreamError for what it raised elsewhere.
    """
    try:
        result = work()
        message = {"told": told(result)}
    except Exception as error:
        ranks.gather({"error": f"{type(error).__name__}: {error}"})
        raise
    answers = ranks.gather(message)
    for rank, answer in enumerate(answers):
        if "error" in answer:
            raise StreamError(f"rank {rank} could not publish: {answer['error']}")
    return result, [answer["told"] for answer in answers]
