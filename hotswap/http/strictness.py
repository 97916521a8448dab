"""What no client may leave open: a key that comes twice, a number that is none.

Everything else about a body is read as kindly as possible; see ``json_body``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import msgspec

from hotswap.http.errors import RequestInvalid

__all__ = ["refuse_repeated_keys", "refuse_repeated_parameters", "refuse_what_is_no_number"]


def refuse_repeated_keys(body: bytes | bytearray) -> None:
    """``body`` is JSON. Raises: RequestInvalid for a key that one object has twice.

    Readers differ in which of the two they take, and a proxy may have read the other.
    """
    try:
        json.loads(body.decode(), object_pairs_hook=_refuse_repeated)
    except (ValueError, RecursionError) as error:
        raise RequestInvalid(f"the body is not JSON: {error}") from error


def refuse_repeated_parameters(names: Sequence[str]) -> None:
    """``names`` are those of a query. Raises: RequestInvalid for one that comes twice."""
    _refuse_twice(names, "the query")


def _refuse_repeated(pairs: list[tuple[str, object]]) -> None:
    _refuse_twice([name for name, _ in pairs], "one object of the body")


def _refuse_twice(names: Sequence[str], where: str) -> None:
    if len(set(names)) != len(names):
        repeated = next(name for at, name in enumerate(names) if name in names[:at])
        raise RequestInvalid(f"{_shown(repeated)} comes twice in {where}, wanted once")


def _shown(name: str) -> str:
    return repr(name if len(name) <= 64 else f"{name[:64]}...")


def refuse_what_is_no_number(body: msgspec.Struct) -> None:
    """Raises: RequestInvalid for a field that is NaN or infinite.

    JSON has no such numbers, but a text like "nan" is read as one.
    """
    for name in body.__struct_fields__:
        value = getattr(body, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise RequestInvalid(f"{name} is {value}, wanted a finite number")
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, msgspec.Struct):
                refuse_what_is_no_number(inner)
