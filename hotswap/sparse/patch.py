"""What one pull changed: absolute words of tensors, in checkpoint coordinates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotswap.sparse.origin import Origin

__all__ = ["Patch", "TensorPatch", "merged"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TensorPatch:
    """The words of eight bytes of a tensor of ``length_bytes`` that may be others now.

    ``words`` ascend, none twice; ``values`` are the new words, little-endian, as they lie in
    the tensor. What is past the end of the tensor in its last word means nothing.
    """

    words: NDArray[np.uint32]
    values: NDArray[np.uint64]
    length_bytes: int

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        return self.words.nbytes + self.values.nbytes

    def is_as(self, other: TensorPatch) -> bool:
        """Whether it makes the same of the same tensor."""
        return (
            self.length_bytes == other.length_bytes
            and np.array_equal(self.words, other.words)
            and np.array_equal(self.values, other.values)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Patch:
    """From ``before`` to ``after``: the tensors that changed, by name. All others are the same."""

    before: Origin
    after: Origin
    tensors: Mapping[str, TensorPatch]

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        return sum(tensor.size_bytes for tensor in self.tensors.values())

    def __repr__(self) -> str:
        return (
            f"<Patch {self.before.version} to {self.after.version} of {self.after.directory} "
            f"{len(self.tensors)} tensors, {self.size_bytes} bytes>"
        )


def merged(patches: Sequence[Patch]) -> dict[str, TensorPatch]:
    """What ``patches``, each on the one before it, make together: later words win."""
    by_tensor: dict[str, list[TensorPatch]] = {}
    for patch in patches:
        for name, tensor in patch.tensors.items():
            by_tensor.setdefault(name, []).append(tensor)
    return {name: _merged(tensors) for name, tensors in by_tensor.items()}


def _merged(tensors: Sequence[TensorPatch]) -> TensorPatch:
    if len(tensors) == 1:
        return tensors[0]
    # The last one first: unique keeps the first of each.
    words, first = np.unique(
        np.concatenate([tensor.words for tensor in reversed(tensors)]), return_index=True
    )
    values = np.concatenate([tensor.values for tensor in reversed(tensors)])[first]
    return TensorPatch(words=words, values=values, length_bytes=tensors[-1].length_bytes)
