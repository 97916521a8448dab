"""Reads a pickle without executing it.

Rules:

* An opcode makes a constant, a container of such, or a record that says which call the
  sender has asked for. None of them imports, looks up or calls anything.
* Names are compared with :mod:`hotswap.wire.names` where they stand, so that a foreign
  one is refused before anything that follows it is read.
* Stack, memo, nesting, memory and opcodes are bounded, whatever the payload says.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from hotswap.wire.budget import Budget
from hotswap.wire.folding import folded
from hotswap.wire.names import CLASSES, Known, hint, known
from hotswap.wire.opcodes import Argument, read_opcodes
from hotswap.wire.records import Call, Fields, Items, Value, depth_of, kind_of
from hotswap.wire.refused import PayloadRefused, shown

__all__ = ["read"]

_HIGHEST_PROTOCOL: Final = 5
# Upper estimates of what CPython takes for one of each, with its place in a parent.
_ITEMS_BYTES, _FIELDS_BYTES, _CALL_BYTES = 192, 448, 160
_PLACE_BYTES, _KEY_BYTES = 24, 160


class _Mark:
    """Where the items of a container that is being made begin."""


_MARK: Final = _Mark()


def read(payload: bytes, budget: Budget) -> Value:
    """What ``payload`` says. Raises: PayloadRefused."""
    budget.begin(len(payload))
    reader = _Reader(budget)
    for name, argument in read_opcodes(payload, budget):
        _ACTIONS[name](reader, argument)
    return reader.result()


class _Reader:
    """The symbolic stack and the memo of one payload."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._stack: list[Value | _Mark] = []
        self._memo: dict[int, Value] = {}

    def result(self) -> Value:
        """The one thing on the stack."""
        if len(self._stack) != 1:
            raise PayloadRefused(f"the payload leaves {len(self._stack)} things, wanted one")
        return self.pop()

    # The stack.

    def push(self, value: Value | _Mark) -> None:
        if len(self._stack) >= self._budget.limits.stack:
            raise PayloadRefused(
                f"more than {self._budget.limits.stack} things on the stack; send fewer tensors"
            )
        self._budget.hold(_PLACE_BYTES)
        self._stack.append(value)

    def pop(self) -> Value:
        value = self._stack.pop() if self._stack else _MARK
        if isinstance(value, _Mark):
            raise PayloadRefused("an opcode wants more than there is on the stack")
        return value

    def top(self) -> Value:
        value = self._stack[-1] if self._stack else _MARK
        if isinstance(value, _Mark):
            raise PayloadRefused("an opcode wants something on the stack, and nothing is")
        return value

    def pop_to_mark(self) -> list[Value]:
        values: list[Value] = []
        while self._stack:
            value = self._stack.pop()
            if isinstance(value, _Mark):
                values.reverse()
                return values
            values.append(value)
        raise PayloadRefused("an opcode wants a MARK on the stack, and none is")

    # Constants.

    def constant(self, value: Argument) -> None:
        self._budget.hold(sys.getsizeof(value))
        self.push(value)

    # Containers.

    def seal(self, value: Value) -> int:
        """``value`` becomes part of another; how deep that is at least."""
        if isinstance(value, Items | Fields | Call):
            value.sealed = True
        depth = depth_of(value) + 1
        if depth > self._budget.limits.depth:
            raise PayloadRefused(f"containers lie more than {depth - 1} deep within each other")
        return depth

    def items(self, values: list[Value], *, is_tuple: bool) -> Items:
        self._budget.hold(_ITEMS_BYTES + _PLACE_BYTES * len(values))
        depth = max(map(self.seal, values), default=1)
        return Items(values=values, is_tuple=is_tuple, sealed=is_tuple, depth=depth)

    def extend(self, values: list[Value]) -> None:
        target = self.top()
        if not isinstance(target, Items) or target.is_tuple or target.sealed:
            raise PayloadRefused(f"something is appended to {kind_of(target)}, wanted a new list")
        self._budget.hold(_PLACE_BYTES * len(values))
        target.depth = max(target.depth, *map(self.seal, values)) if values else target.depth
        target.values.extend(values)

    def set_items(self, values: list[Value]) -> None:
        target = self.top()
        if not isinstance(target, Fields) or target.sealed:
            raise PayloadRefused(f"a key of {kind_of(target)} is set, wanted a new dict")
        self.fill(target, values)

    def fill(self, target: Fields, values: list[Value]) -> None:
        if len(values) % 2:
            raise PayloadRefused("a dict has a key without a value")
        self._budget.hold(_KEY_BYTES * (len(values) // 2))
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str):
                raise PayloadRefused(f"a dict has the key {kind_of(key)}, wanted a text")
            target.depth = max(target.depth, self.seal(value))
            target.values[key] = value

    def fields(self, values: list[Value]) -> Fields:
        self._budget.hold(_FIELDS_BYTES)
        made = Fields()
        self.fill(made, values)
        return made

    # Names and calls.

    def name(self, module: Value, name: Value) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise PayloadRefused(f"{kind_of(module)} and {kind_of(name)} make no name")
        found = known(module, name)
        if found is None:
            raise PayloadRefused(
                f"the name {shown(f'{module}.{name}')} stands in no tensor, bucket or handle: "
                f"nothing was imported or called; {hint(module, name)}"
            )
        self.push(found)

    def reduce(self) -> None:
        arguments, called = self.pop(), self.pop()
        if not isinstance(called, Known):
            raise PayloadRefused(f"{kind_of(called)} is called, wanted a name")
        if not isinstance(arguments, Items) or not arguments.is_tuple:
            raise PayloadRefused(f"{called} is called with {kind_of(arguments)}, wanted a tuple")
        plain = folded(called, arguments.values)
        if isinstance(plain, bytes):
            self.constant(plain)
        elif plain is not None:
            self.instance(plain)
        elif called in CLASSES:
            raise PayloadRefused(f"{called} is called, wanted an instance with fields")
        else:
            self.call(called, arguments)

    def new_object(self) -> None:
        arguments, cls = self.pop(), self.pop()
        if not isinstance(arguments, Items) or not arguments.is_tuple or arguments.values:
            raise PayloadRefused(f"an instance is made of {kind_of(arguments)}, wanted fields")
        if not isinstance(cls, Known) or cls not in CLASSES:
            raise PayloadRefused(f"an instance of {kind_of(cls)}, which has no fields")
        self.instance(cls)

    def instance(self, cls: Known) -> None:
        self._budget.hold(_CALL_BYTES)
        self.call(cls, self.items([], is_tuple=True))

    def call(self, called: Known, arguments: Items) -> None:
        self._budget.hold(_CALL_BYTES)
        self.push(Call(name=called, arguments=arguments, depth=self.seal(arguments)))

    def build(self) -> None:
        fields, target = self.pop(), self.top()
        if not isinstance(fields, Fields):
            raise PayloadRefused(f"fields are {kind_of(fields)}, wanted a dict")
        if not isinstance(target, Call) or target.name not in CLASSES:
            raise PayloadRefused(f"{kind_of(target)} is given fields, and has none")
        if target.sealed or target.fields is not None:
            raise PayloadRefused(f"{target.name} is given fields twice")
        target.depth = max(target.depth, self.seal(fields))
        target.fields = fields

    # The memo.

    def put(self, place: int) -> None:
        if len(self._memo) >= self._budget.limits.memo:
            raise PayloadRefused(
                f"more than {self._budget.limits.memo} things are memoised; send fewer tensors"
            )
        self._budget.hold(_KEY_BYTES)
        self._memo[place] = self.top()

    def get(self, place: int) -> None:
        if place not in self._memo:
            raise PayloadRefused(f"place {place} of the memo is read, and nothing is there")
        value = self._memo[place]
        if isinstance(value, Items | Fields | Call) and not value.sealed:
            raise PayloadRefused(f"{kind_of(value)} is used before it is complete")
        self.push(value)

    def memoize(self) -> None:
        self.put(len(self._memo))


_Action = Callable[[_Reader, Argument], None]


def _ignore(reader: _Reader, argument: Argument) -> None:
    """FRAME is a hint for readers of files, and STOP is the end."""


def _protocol(reader: _Reader, argument: Argument) -> None:
    if not isinstance(argument, int) or argument > _HIGHEST_PROTOCOL:
        raise PayloadRefused(
            f"the payload has protocol {argument!r}, wanted 0 to {_HIGHEST_PROTOCOL}"
        )


def _constant(reader: _Reader, argument: Argument) -> None:
    reader.constant(argument)


def _always(value: bool | None) -> _Action:
    return lambda reader, argument: reader.constant(value)


def _tuple_of(count: int) -> _Action:
    def act(reader: _Reader, argument: Argument) -> None:
        values = [reader.pop() for _ in range(count)]
        reader.push(reader.items(values[::-1], is_tuple=True))

    return act


def _marked(reader: _Reader, argument: Argument, *, is_tuple: bool) -> None:
    reader.push(reader.items(reader.pop_to_mark(), is_tuple=is_tuple))


def _set_item(reader: _Reader, argument: Argument) -> None:
    value, key = reader.pop(), reader.pop()
    reader.set_items([key, value])


def _global(reader: _Reader, argument: Argument) -> None:
    module, _, name = str(argument).partition(" ")
    reader.name(module, name)


def _stack_global(reader: _Reader, argument: Argument) -> None:
    name, module = reader.pop(), reader.pop()
    reader.name(module, name)


def _at(action: Callable[[_Reader, int], None]) -> _Action:
    def act(reader: _Reader, argument: Argument) -> None:
        action(reader, argument if isinstance(argument, int) else 0)

    return act


_ACTIONS: Mapping[str, _Action] = {
    "PROTO": _protocol,
    "FRAME": _ignore,
    "STOP": _ignore,
    "MARK": lambda reader, argument: reader.push(_MARK),
    "NONE": _always(None),
    "NEWTRUE": _always(True),
    "NEWFALSE": _always(False),
    **dict.fromkeys(("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"), _constant),
    **dict.fromkeys(("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), _constant),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"), _constant),
    "EMPTY_LIST": lambda reader, argument: reader.push(reader.items([], is_tuple=False)),
    "APPEND": lambda reader, argument: reader.extend([reader.pop()]),
    "APPENDS": lambda reader, argument: reader.extend(reader.pop_to_mark()),
    "LIST": partial(_marked, is_tuple=False),
    "EMPTY_TUPLE": _tuple_of(0),
    "TUPLE": partial(_marked, is_tuple=True),
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "EMPTY_DICT": lambda reader, argument: reader.push(reader.fields([])),
    "DICT": lambda reader, argument: reader.push(reader.fields(reader.pop_to_mark())),
    "SETITEM": _set_item,
    "SETITEMS": lambda reader, argument: reader.set_items(reader.pop_to_mark()),
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "REDUCE": lambda reader, argument: reader.reduce(),
    "NEWOBJ": lambda reader, argument: reader.new_object(),
    "BUILD": lambda reader, argument: reader.build(),
    "PUT": _at(_Reader.put),
    "BINPUT": _at(_Reader.put),
    "LONG_BINPUT": _at(_Reader.put),
    "MEMOIZE": lambda reader, argument: reader.memoize(),
    "GET": _at(_Reader.get),
    "BINGET": _at(_Reader.get),
    "LONG_BINGET": _at(_Reader.get),
}
