"""Calling a C function by its address: the same in a compiled loop and out of one.

A loop that asks nothing of Python runs to its end without the interpreter's lock. What gives the
lock back and takes it again for each small step waits for it, on two threads, longer than the
steps take.
"""

from __future__ import annotations

import ctypes
import importlib
from functools import cache
from typing import Any

__all__ = ["address_of", "call", "make_callable"]

_ARGUMENTS = 4


def call(address: int, first: int, second: int, third: int, fourth: int) -> int:
    """What the function at ``address`` returns, as 64 bits with a sign.

    It takes up to four integers or pointers: those that it does not take do no harm where
    arguments go in registers, as on every Linux of 64 bits.
    """
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * _ARGUMENTS)
    returned: int = kind(int(address))(*map(int, (first, second, third, fourth)))
    return returned


def address_of(library: ctypes.CDLL, name: str) -> int:
    """Where the function ``name`` is; 0 for one that ``library`` does not show."""
    function = getattr(library, name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


@cache
def make_callable() -> None:
    """Let numba compile loops that use ``call``. Raises: ImportError."""
    types = importlib.import_module("numba.core.types")
    extending = importlib.import_module("numba.extending")
    ir = importlib.import_module("llvmlite.ir")

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
