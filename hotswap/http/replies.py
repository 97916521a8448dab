"""JSON replies, encoded by msgspec: enums by value, dataclasses as objects, NaN as null."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from hotswap.foreign import sendable

__all__ = ["Json", "encode"]

_encoder = msgspec.json.Encoder()


def encode(content: object) -> bytes:
    """JSON bytes of ``content``; half characters in it become escapes (``\\ud800``)."""
    try:
        return _encoder.encode(content)
    except UnicodeEncodeError:
        # What is no Unicode comes from outside: a file's name, a label of an embedder.
        return _encoder.encode(_sendable(msgspec.to_builtins(content)))


def _sendable(content: object) -> object:
    if isinstance(content, str):
        return sendable(content)
    if isinstance(content, dict):
        return {_sendable(key): _sendable(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_sendable(item) for item in content]
    return content


class Json(Response):
    """A JSON reply."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Encode the body."""
        return encode(content)
