"""Whether a full version is one of the model that its stream is about.

Rule: every version has the tensors of the base, each of the same dtype and shape. A full
version has no checksums: that is how one wrong byte in its headers shows. It may have more of
them: a trainer may write out a tensor that the base only has tied to another. One that has not
one name in common is another model, which a loader refuses by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from hotswap.stream.errors import VersionMalformed
from hotswap.stream.stored import StoredTensors

__all__ = ["Shapes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """The tensors of the checkpoint at ``place``. ``of``: name -> dtype and shape in words."""

    place: str
    of: Mapping[str, str]

    @classmethod
    def seen_in(cls, stored: StoredTensors) -> Self:
        """Those of an open checkpoint."""
        spans = {name: tensor.span for name, tensor in stored.tensors.items()}
        of = {name: f"{span.dtype} {list(span.shape)}" for name, span in spans.items()}
        return cls(place=str(stored.folder.path), of=of)

    def check(self, full: StoredTensors) -> None:
        """Raises: VersionMalformed naming the first tensor that ``full`` has not as here."""
        other = Shapes.seen_in(full)
        if self.of.keys().isdisjoint(other.of):
            return
        for name, wanted in sorted(self.of.items()):
            seen = other.of.get(name, "not there")
            if seen != wanted:
                raise VersionMalformed(
                    f"{other.place}: tensor {name!r:.200} is {seen}, wanted it as in "
                    f"{self.place}, where it is {wanted}; publish the version again, or give "
                    "the base checkpoint of this model"
                )
