"""What a staging needs, and where it puts what changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

from hotswap.sparse.recorder import Recorder
from hotswap.stream.blobs import Delta
from hotswap.stream.encodings import Bytes
from hotswap.stream.gap_memory import GapMemory
from hotswap.stream.progress import Tally
from hotswap.stream.words import Words

__all__ = ["STAGING", "Changes", "InPlace"]

STAGING = "apply"
"""The phase in which nothing that counts is written yet."""


class Changes(Protocol):
    """Where changed pieces of files go: a journal, or a second copy. Any thread."""

    def wants_words(self, file: int) -> bool:
        """Whether ``change`` has to be told which words of file number ``file`` are others."""
        ...

    def change(self, file: int, offset: int, room: Bytes, *, span: int, words: Words) -> None:
        """The ``span`` bytes at ``offset`` are now as ``room`` begins, which is whole words."""
        ...


def _none(_name: str) -> Sequence[Delta]:
    return ()


@dataclass(frozen=True, kw_only=True)
class InPlace:
    """What a staging needs: ``known`` are the recorded xxh3-128 of the old tensors.

    ``earlier`` are deltas that a tensor's own follow on; ``recorder`` does not hear of them.
    ``memory`` is for deltas that will be applied again.
    """

    changes: Changes | None
    pool: Executor
    tally: Tally
    known: Mapping[str, str]
    recorder: Recorder | None = None
    earlier: Callable[[str], Sequence[Delta]] = _none
    memory: GapMemory | None = None
    digests: dict[str, str] = field(default_factory=dict)
    """Filled: tensor name -> xxh3-128 of the new bytes."""
