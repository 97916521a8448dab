"""One record, wanted in one shape: what it holds, or PayloadRefused that says what it is."""

from __future__ import annotations

import torch

from hotswap.wire.names import Known
from hotswap.wire.records import Call, Fields, Items, Value, kind_of
from hotswap.wire.refused import PayloadRefused, shown

__all__ = ["a_bool", "a_dtype", "a_number", "a_text", "arguments_of", "bytes_of", "fields_of",
           "items_of", "numbers_of"]  # fmt: skip


def items_of(value: Value, what: str, *, count: int | None = None) -> list[Value]:
    """The items of a tuple or a list, of ``count`` where that is given."""
    if not isinstance(value, Items):
        raise PayloadRefused(f"{what} is {kind_of(value)}, wanted a tuple or a list")
    if count is not None and len(value.values) != count:
        raise PayloadRefused(f"{what} has {len(value.values)} parts, wanted {count}")
    return value.values


def arguments_of(value: Value, what: str, *names: Known, counts: range) -> list[Value]:
    """The arguments of a call of one of ``names``."""
    if not isinstance(value, Call) or value.name not in names:
        wanted = " or ".join(map(str, names))
        raise PayloadRefused(f"{what} is {kind_of(value)}, wanted {wanted}")
    if len(value.arguments.values) not in counts:
        raise PayloadRefused(f"{what} is {value!r}, wanted {counts.start} to {counts.stop - 1}")
    return value.arguments.values


def fields_of(value: Value, what: str, cls: Known | None, *wanted: str) -> list[Value]:
    """The values of exactly the fields ``wanted``, in that order, of an instance of ``cls``,
    or of a dict where that is None."""
    if cls is not None and isinstance(value, Call) and value.name is cls:
        value = value.fields
    if not isinstance(value, Fields):
        kind = "nothing" if value is None else kind_of(value)
        raise PayloadRefused(f"{what} is {kind}, wanted {cls or 'a dict'} with {list(wanted)}")
    if value.values.keys() != set(wanted):
        seen = [shown(name) for name in list(value.values)[:8]]
        raise PayloadRefused(f"{what} has the fields {seen}, wanted {list(wanted)}")
    return [value.values[name] for name in wanted]


def numbers_of(value: Value, what: str, *, limit: int) -> tuple[int, ...]:
    """A tuple of at most ``limit`` integers, or a ``torch.Size`` of them."""
    if isinstance(value, Call) and value.name is Known.SIZE:
        (value,) = arguments_of(value, what, Known.SIZE, counts=range(1, 2))
    values = items_of(value, what)
    if len(values) > limit:
        raise PayloadRefused(f"{what} has {len(values)} numbers, wanted at most {limit}")
    return tuple(a_number(item, what) for item in values)


def a_number(value: Value, what: str) -> int:
    """A natural number below 2^63."""
    # True is an int to Python.
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        kind = str(value) if isinstance(value, int) else kind_of(value)
        raise PayloadRefused(f"{what} is {kind}, wanted a number from 0 to 2^63 - 1")
    return value


def a_bool(value: Value, what: str) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise PayloadRefused(f"{what} is {kind_of(value)}, wanted true or false")
    return value


def a_text(value: Value, what: str, *, limit: int = 1024) -> str:
    """A text of 1 to ``limit`` characters."""
    if not isinstance(value, str) or not 0 < len(value) <= limit:
        seen = shown(value) if isinstance(value, str) else kind_of(value)
        raise PayloadRefused(f"{what} is {seen}, wanted a text of 1 to {limit} characters")
    return value


def bytes_of(value: Value, what: str, *, limit: int = 1024) -> bytes:
    """At most ``limit`` bytes."""
    if not isinstance(value, bytes) or len(value) > limit:
        seen = f"{len(value)} bytes" if isinstance(value, bytes) else kind_of(value)
        raise PayloadRefused(f"{what} is {seen}, wanted at most {limit} bytes")
    return value


def a_dtype(value: Value, what: str) -> torch.dtype:
    """A dtype."""
    if not isinstance(value, torch.dtype):
        raise PayloadRefused(f"{what} is {kind_of(value)}, wanted a dtype of torch")
    return value
