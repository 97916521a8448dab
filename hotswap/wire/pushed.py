"""What a push brings, whatever wire it came over: memory that is there already."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from hotswap.types import Payload

__all__ = ["Pushed"]


class Pushed(Protocol):
    """The tensors of one request, or of one session; :func:`hotswap.wire.push_update` takes it."""

    def opened(self) -> AbstractContextManager[Mapping[str, Payload]]:
        """Payloads by name, which can be read again and again, and do not change, for as long as
        the block lasts. Entered and left on a worker thread, and left on every path.

        Raises: UpdateRejected when there is nothing to be read.
        """
        ...
