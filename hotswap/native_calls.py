"""C functions and memory by their addresses: the same in a compiled loop and out of one.

A loop that asks nothing of Python runs to its end without the interpreter's lock. What gives the
lock back and takes it again for each small step waits for it, on two threads, longer than the
steps take.
"""

from __future__ import annotations

import ctypes
import importlib
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["address_of", "bytes_at", "call", "make_callable"]

_ARGUMENTS = 4


def call(address: int, first: int, second: int, third: int, fourth: int) -> int:
    """What the function at ``address`` returns, as 64 bits with a sign.

    It takes up to four integers or pointers: those that it does not take do no harm where
    arguments go in registers, as on every Linux of 64 bits.
    """
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * _ARGUMENTS)
    returned: int = kind(int(address))(*map(int, (first, second, third, fourth)))
    return returned


def bytes_at(address: int, count: int) -> NDArray[np.uint8]:
    """The ``count`` bytes from ``address`` on, which have to stay there as long as they are used.

    One loop goes through any number of arrays so, and is compiled for none of their kinds.
    """
    kind = ctypes.c_uint8 * int(count)
    return np.ctypeslib.as_array(kind.from_address(int(address)))


def address_of(library: ctypes.CDLL, name: str) -> int:
    """Where the function ``name`` is; 0 for one that ``library`` does not show."""
    function = getattr(library, name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


@cache
def make_callable() -> None:
    """Let numba compile loops that use ``call`` and ``bytes_at``. Raises: ImportError."""
    numba = importlib.import_module("numba")
    types = importlib.import_module("numba.core.types")
    extending = importlib.import_module("numba.extending")
    ir = importlib.import_module("llvmlite.ir")
    _make_call(types, extending, ir)
    _make_bytes_at(numba, types, extending, ir)


def _make_call(types: Any, extending: Any, ir: Any) -> None:

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(word, [word] * _ARGUMENTS)
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    def typed(
        typingctx: Any, address: Any, first: Any, second: Any, third: Any, fourth: Any
    ) -> tuple[Any, Any]:
        return types.int64(*[types.int64] * (1 + _ARGUMENTS)), generate

    compiled_call = extending.intrinsic(typed)

    def chosen(address: Any, first: Any, second: Any, third: Any, fourth: Any) -> Any:
        return lambda address, first, second, third, fourth: compiled_call(
            address, first, second, third, fourth
        )

    extending.overload(call, strict=False)(chosen)


def _make_bytes_at(numba: Any, types: Any, extending: Any, ir: Any) -> None:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    def typed(typingctx: Any, address: Any) -> tuple[Any, Any]:
        return types.CPointer(types.uint8)(types.int64), generate

    pointer, carray = extending.intrinsic(typed), numba.carray

    def chosen(address: Any, count: Any) -> Any:
        return lambda address, count: carray(pointer(address), count)

    extending.overload(bytes_at, strict=False)(chosen)
