"""Read a request's arguments leniently: clients differ, and most send what they like.

* an empty body is ``{}``; the content type is not looked at;
* query parameters count too, and the body wins over them;
* unknown keys are ignored, an explicit null is a key that was not sent;
* numbers and booleans may come as strings. A wrong type is an error that names
  its field.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.types import Receive

from hotswap.http.errors import ClientGone, PayloadTooLarge, RequestInvalid

__all__ = ["arguments", "converted", "read_body"]

T = TypeVar("T", bound=msgspec.Struct)

# A client that is still sending reads no reply: swallow this much before 413.
_DRAIN_BYTES = 64 * 1024 * 1024


async def arguments(request: Request, wanted: type[T], *, limit_bytes: int) -> T:
    """Query and JSON body of ``request`` as a ``wanted``.

    Raises: RequestInvalid, PayloadTooLarge, ClientGone.
    """
    body = await read_body(request.receive, limit_bytes=limit_bytes)
    return converted({**request.query_params, **_parsed(body)}, wanted)


async def read_body(receive: Receive, *, limit_bytes: int) -> bytes:
    """Every byte of the body. Raises: PayloadTooLarge past the limit, ClientGone."""
    kept = bytearray()
    seen = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk: bytes = message.get("body", b"")
        seen += len(chunk)
        if seen <= limit_bytes:
            kept += chunk
        else:
            kept.clear()
        if not message.get("more_body", False) or seen > _DRAIN_BYTES + limit_bytes:
            break
    if seen > limit_bytes:
        raise PayloadTooLarge(
            f"the body has more than {limit_bytes} bytes; send less, or start the server "
            "with a larger --max-http-request-bytes"
        )
    return bytes(kept)


def converted(values: dict[str, object], wanted: type[T]) -> T:
    """``values`` as a ``wanted``. Raises: RequestInvalid naming the field."""
    try:
        return msgspec.convert(_without_nulls(values), wanted, strict=False)
    except msgspec.ValidationError as error:
        raise RequestInvalid(f"invalid request: {error}") from error


def _parsed(body: bytes) -> dict[str, object]:
    if not body.strip():
        return {}
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestInvalid(f"the body is not JSON: {error}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RequestInvalid(
            f"the body is a JSON {type(value).__name__}, wanted an object with named fields"
        )
    return value


def _without_nulls(values: dict[str, object]) -> dict[str, object]:
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }
