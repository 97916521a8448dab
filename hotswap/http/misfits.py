"""What to say of arguments that do not fit: the field, what was seen, what was wanted.

msgspec says where and why in words of its own, without the values that would have been right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec
from msgspec import inspect

from hotswap.http.errors import RequestInvalid

__all__ = ["refusal"]

_AT = re.compile(r"(?P<said>.*?)(?: - at `\$(?P<path>[\w.\[\]]*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)
_EXPECTED = re.compile(r"Expected (?P<wanted>.*?)(?:, got (?P<got>.*))?", re.DOTALL)
_STEP = re.compile(r"\.(?P<name>\w+)|\[(?P<index>\d+|\.\.\.)\]")

_MAX_SHOWN = 64

_NAMED: Mapping[type[inspect.Type], str] = {
    inspect.StrType: "a text",
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.BoolType: "true or false",
    inspect.ListType: "a list",
    inspect.DictType: "an object",
    inspect.StructType: "an object",
}


def refusal(
    error: Exception, values: Mapping[str, object], wanted: type[msgspec.Struct]
) -> RequestInvalid:
    """The error for ``values`` that are no ``wanted``, which msgspec has refused with ``error``."""
    found = _AT.fullmatch(str(error))
    said, path = (found["said"], found["path"] or "") if found else (str(error), "")
    types = list(_types_at(inspect.type_info(wanted), path))
    missing, expected = _MISSING.fullmatch(said), _EXPECTED.fullmatch(said)
    if missing is not None:
        path, kinds = f"{path}.{missing['name']}", types
        types = [kind for outer in kinds for kind in _inside(outer, missing["name"])]
        told = f"required field `{path[1:]}` is missing, wanted {_wanted(types)}"
    elif said.startswith("Invalid enum value"):
        told = f"${path} is {_seen(values, path)}, wanted {_wanted(types)}"
    elif expected is not None:
        named = expected["wanted"].replace("`", "").removesuffix(" | null")
        told = f"${path} is {_seen(values, path)}, wanted {named}"
    else:
        return RequestInvalid(f"invalid request: {error}")
    outermost = _STEP.match(path)
    return RequestInvalid(told, field=None if outermost is None else outermost["name"])


def _types_at(kind: inspect.Type, path: str) -> Iterator[inspect.Type]:
    """What may stand at ``path``, as msgspec writes one, within ``kind``."""
    kinds = list(_each(kind))
    for step in _STEP.finditer(path):
        kinds = [inner for outer in kinds for inner in _inside(outer, step["name"])]
    yield from kinds


def _inside(kind: inspect.Type, name: str | None) -> Iterator[inspect.Type]:
    """What is in ``kind``: in its field ``name``, or (None) in any of its places."""
    match kind:
        case inspect.StructType() if name is not None:
            for field in kind.fields:
                if field.encode_name == name:
                    yield from _each(field.type)
        case inspect.ListType() if name is None:
            yield from _each(kind.item_type)
        case inspect.DictType() if name is None:
            yield from _each(kind.value_type)


def _each(kind: inspect.Type) -> Iterator[inspect.Type]:
    """``kind``, or each that it is made of; null is a value that was not sent."""
    if isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _each(one)
    elif isinstance(kind, inspect.Metadata):
        yield from _each(kind.type)
    elif not isinstance(kind, inspect.NoneType):
        yield kind


def _wanted(kinds: list[inspect.Type]) -> str:
    values = [
        str(value)
        for kind in kinds
        if isinstance(kind, inspect.LiteralType)
        for value in kind.values
    ]
    if values:
        return f"one of: {', '.join(values)}"
    named = dict.fromkeys(_NAMED.get(type(kind), "another value") for kind in kinds)
    return " or ".join(named) or "another value"


def _seen(values: Mapping[str, object], path: str) -> str:
    """What stands at ``path``, in a few letters."""
    value: object = values
    for step in _STEP.finditer(path):
        if isinstance(value, Mapping) and step["name"] in value:
            value = value[step["name"]]
        elif isinstance(value, list) and step["index"] not in (None, "..."):
            value = value[int(step["index"])]
        else:
            return "of another type"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    shown = repr(value)
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."
