"""Read a request's arguments leniently: clients differ, and most send what they like.

* an empty body is ``{}``; the content type is not looked at;
* query parameters count too, and the body wins over them;
* unknown keys are ignored, an explicit null is a key that was not sent (so is one
  in an argument that is an object, or a list of objects);
* numbers and booleans may come as strings. A wrong type is an error that names
  its field; so is what could be read in two ways (:mod:`hotswap.http.strictness`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.types import Receive

from hotswap.http.body_limit import limited
from hotswap.http.errors import ClientGone, RequestInvalid
from hotswap.http.misfits import refusal
from hotswap.http.strictness import (
    refuse_repeated_keys,
    refuse_repeated_parameters,
    refuse_what_is_no_number,
)

__all__ = [
    "MAX_SHOWN_NAMES",
    "arguments",
    "converted",
    "ignored_names",
    "named_values",
    "query_of",
    "read_body",
    "read_into",
    "values_of",
]

T = TypeVar("T", bound=msgspec.Struct)

# The arguments themselves, and the fields of one that is an object or has some. What lies deeper
# is a client's own, and may lie too deep to walk through.
_NULL_LEVELS = 2

MAX_SHOWN_NAMES = 16
"""Of the names that are told to be ignored."""

_MAX_SHOWN_CHARACTERS = 64


async def arguments(request: Request, wanted: type[T], *, limit_bytes: int) -> T:
    """Query and JSON body of ``request`` as a ``wanted``.

    Raises: RequestInvalid, PayloadTooLarge, ClientGone.
    """
    return converted(await named_values(request, limit_bytes=limit_bytes), wanted)


async def named_values(request: Request, *, limit_bytes: int) -> dict[str, object]:
    """Query and JSON body of ``request`` as they came. Raises: as ``arguments``."""
    return values_of(request, await read_body(request.receive, limit_bytes=limit_bytes))


def values_of(request: Request, body: bytes | bytearray) -> dict[str, object]:
    """Query and JSON ``body`` of ``request``. Raises: RequestInvalid."""
    return {**query_of(request), **_parsed(body)}


def query_of(request: Request) -> dict[str, object]:
    """The query parameters of ``request``. Raises: RequestInvalid for one that comes twice."""
    refuse_repeated_parameters([name for name, _ in request.query_params.multi_items()])
    return {**request.query_params}


def ignored_names(
    values: Mapping[str, object],
    known: type[msgspec.Struct],
    *,
    inner: Mapping[str, type[msgspec.Struct]] | None = None,
) -> list[str]:
    """The keys of ``values`` that ``known`` has no field for, sorted; at most 16, cut short.

    ``inner`` names fields that are objects, or lists of objects, and what each knows: a
    key in one that it does not know is ``field.key``, unless it is null.
    """
    unknown = set(values) - _fields(known)
    for field, struct in (inner or {}).items():
        unknown |= {f"{field}.{key}" for key in _told(values.get(field)) - _fields(struct)}
    return [name[:_MAX_SHOWN_CHARACTERS] for name in sorted(unknown)[:MAX_SHOWN_NAMES]]


def _told(value: object) -> set[str]:
    """The keys of an object, or of each in a list of them, that are not null."""
    ones = value if isinstance(value, list) else [value]
    return {
        key
        for one in ones
        if isinstance(one, dict)
        for key, content in one.items()
        if content is not None
    }


def _fields(struct: type[msgspec.Struct]) -> set[str]:
    return set(struct.__struct_fields__)


async def read_body(receive: Receive, *, limit_bytes: int) -> bytes:
    """Every byte of the body. Raises: PayloadTooLarge past the limit, ClientGone."""
    kept = bytearray()
    await read_into(kept, receive, limit_bytes=limit_bytes)
    return bytes(kept)


async def read_into(kept: bytearray, receive: Receive, *, limit_bytes: int) -> None:
    """Add every byte of the body to ``kept``, which has what had come also where this raises.

    Raises: PayloadTooLarge, ClientGone.
    """
    receive = limited(receive, limit_bytes)
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        kept += message.get("body", b"")
        more = message.get("more_body", False)


def converted(values: dict[str, object], wanted: type[T]) -> T:
    """``values`` as a ``wanted``. Raises: RequestInvalid naming the field."""
    try:
        body = msgspec.convert(_without_nulls(values, _NULL_LEVELS), wanted, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise refusal(error, values, wanted) from error
    refuse_what_is_no_number(body)
    return body


def _parsed(body: bytes | bytearray) -> dict[str, object]:
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
    refuse_repeated_keys(body)
    return value


def _without_nulls(values: dict[str, object], levels: int) -> dict[str, object]:
    return {
        key: _inner_without_nulls(value, levels - 1) if levels > 1 else value
        for key, value in values.items()
        if value is not None
    }


def _inner_without_nulls(value: object, levels: int) -> object:
    if isinstance(value, dict):
        return _without_nulls(value, levels)
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [_without_nulls(item, levels) if isinstance(item, dict) else item for item in value]
    return value
