"""The first look at a source: what has to happen before it, once a pull.

Rule: whoever holds the local checkpoint's lock calls the pre-read, so that the pulls of
one host that wait for each other make one such call, and not one each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from hotswap.errors import HotswapError
from hotswap.foreign import said, words_of
from hotswap.stream.errors import SourceNotReady
from hotswap.stream.objects import Objects
from hotswap.stream.place import Place

__all__ = ["FirstLook", "PreRead"]

PreRead: TypeAlias = Callable[[Any, int], None]
"""Called with the source (a ``Path``, or a URL as text) and the target version, on the pull's
thread; raising fails the pull.

It brings its own time limit.
"""


class FirstLook:
    """Calls ``pre_read`` before the first look; what it raises, every later look raises."""

    def __init__(self, pre_read: PreRead | None, source: Place, target: int) -> None:
        self._pre_read = pre_read
        self._source = source
        self._target = target
        self._failure: SourceNotReady | None = None

    def __repr__(self) -> str:
        return f"<FirstLook {'due' if self._pre_read else 'taken'} at {self._source}>"

    @property
    def due(self) -> bool:
        """Whether there is a pre-read to wait for."""
        return self._pre_read is not None

    def take(self) -> None:
        """Return when the source may be looked at. Raises: SourceNotReady, each time."""
        pre_read, self._pre_read = self._pre_read, None
        if pre_read is not None:
            try:
                pre_read(
                    str(self._source) if isinstance(self._source, Objects) else self._source,
                    self._target,
                )
            except Exception as error:
                # A pull that could not look must not take the source for an empty one.
                self._failure = _explained(error, self._source)
                self._failure.__cause__ = error
        if self._failure is not None:
            raise self._failure


def _explained(error: Exception, source: Place) -> SourceNotReady:
    reason = words_of(error) if isinstance(error, HotswapError) else said(error)
    return SourceNotReady(
        f"{source}: was not looked at, because its pre-read failed ({reason}); see to what it "
        "waits for and pull again"
    )
