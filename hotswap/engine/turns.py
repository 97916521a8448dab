"""A request's part in one forward pass."""

from __future__ import annotations

from dataclasses import dataclass

from hotswap.engine.request import Request

__all__ = ["Turn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The next ``count`` tokens of a text go through the model.

    ``is_last`` when no token is left after them: the pass gives the next one.
    ``is_decode`` when they are the one that the pass before gave.
    """

    request: Request
    count: int
    is_last: bool
    is_decode: bool

    @classmethod
    def of(cls, request: Request, count: int) -> Turn:
        """The next ``count`` tokens of ``request``, which runs."""
        is_decode = request.left == 1 and len(request.tokens) > request.prompt_length
        return cls(request=request, count=count, is_last=count == request.left, is_decode=is_decode)
