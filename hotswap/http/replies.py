"""JSON replies, encoded by msgspec: enums by value, dataclasses as objects, NaN as null."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

__all__ = ["Json", "encode"]

_encoder = msgspec.json.Encoder()


def encode(content: object) -> bytes:
    """JSON bytes of ``content``."""
    return _encoder.encode(content)


class Json(Response):
    """A JSON reply."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Encode the body."""
        return encode(content)
