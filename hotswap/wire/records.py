"""What a payload says, as inert data.

Rules:

* A record is complete once it stands in another, and a tuple from the beginning: from then
  on it is *sealed* and never changes, so that nothing can contain itself.
* No record shows its contents in its ``repr``: a payload may name one part twice, that
  part another twice, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from hotswap.wire.names import Known

__all__ = ["Call", "Constant", "Fields", "Items", "Value", "depth_of", "kind_of"]

Constant: TypeAlias = bool | int | str | bytes | None


@dataclass(slots=True, eq=False, repr=False)
class Items:
    """A tuple or a list."""

    values: list[Value]
    is_tuple: bool = False
    sealed: bool = False
    depth: int = 1

    def __repr__(self) -> str:
        return f"<{'tuple' if self.is_tuple else 'list'} of {len(self.values)}>"


@dataclass(slots=True, eq=False, repr=False)
class Fields:
    """A dict whose keys are strings."""

    values: dict[str, Value] = field(default_factory=dict)
    sealed: bool = False
    depth: int = 1

    def __repr__(self) -> str:
        return f"<dict of {len(self.values)}>"


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """What the sender would have called, and with what; for an instance of a class, the
    class, no arguments, and its ``fields``."""

    name: Known
    arguments: Items
    fields: Fields | None = None
    sealed: bool = False
    depth: int = 1

    def __repr__(self) -> str:
        return f"<{self.name} with {len(self.arguments.values)} arguments>"


Value: TypeAlias = Constant | Known | torch.dtype | Items | Fields | Call


def depth_of(value: Value) -> int:
    """How many containers lie within each other, this one counted."""
    return value.depth if isinstance(value, Items | Fields | Call) else 0


def kind_of(value: Value) -> str:
    """What ``value`` is, for a message."""
    if isinstance(value, Items | Fields | Call):
        return repr(value)
    return str(value) if isinstance(value, Known | torch.dtype) else type(value).__name__
