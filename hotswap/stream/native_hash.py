"""An xxh3-128 with which compiled loops go on: the functions of the library that ``xxhash`` brings.

A loop that hashes what it has just read or compared finds it in the processor's cache, and asks
for the interpreter's lock neither before nor after.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import weakref
from collections.abc import Callable
from functools import cache

import numpy as np
import xxhash

from hotswap.native import has_native
from hotswap.native_calls import address_of, call
from hotswap.stream.checksums import OWN_CHECKSUM, Hasher, new_hasher

__all__ = ["Hash", "addresses", "has_native_hash", "native_hasher"]

_LIBRARY = "xxhash._xxhash"
_DISPATCHED = "XXH3_128bits_update_dispatch"


class _Digest(ctypes.Structure):
    _fields_ = (("low", ctypes.c_uint64), ("high", ctypes.c_uint64))


class _Xxh3:
    """The functions of the library that ``xxhash`` brings, called with the interpreter's lock."""

    def __init__(self, path: str) -> None:
        """Raises: OSError, AttributeError for a library that does not show them."""
        library = ctypes.PyDLL(path)
        create, free = library.XXH3_createState, library.XXH3_freeState
        reset, digest = library.XXH3_128bits_reset, library.XXH3_128bits_digest
        create.restype, digest.restype = ctypes.c_void_p, _Digest
        free.argtypes = reset.argtypes = digest.argtypes = (ctypes.c_void_p,)
        self.create: Callable[[], int | None] = create
        self.free: Callable[[int], object] = free
        self.reset: Callable[[int], object] = reset
        self.digest: Callable[[int], _Digest] = digest
        # Without the lock, as it takes longer than getting that back does.
        unlocked = ctypes.CDLL(path)
        take = getattr(unlocked, _DISPATCHED, None) or unlocked.XXH3_128bits_update
        take.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        self.take: Callable[[int, int, int], object] = take
        # The first chooses what the processor can do; not every build has it.
        self.update: int = address_of(library, _DISPATCHED) or address_of(
            library, "XXH3_128bits_update"
        )
        self.pread: int = address_of(ctypes.CDLL(None), "pread")


@cache
def _functions() -> _Xxh3 | None:
    """None where they cannot be had, or are not what they seem."""
    if sys.maxsize < 2**32:  # offsets would be shorter than what is passed
        return None
    try:
        found = _Xxh3(str(importlib.import_module(_LIBRARY).__file__))
    except (ImportError, OSError, AttributeError):
        return None
    return found if found.pread and found.update and _is_right(found) else None


def _is_right(functions: _Xxh3) -> bool:
    probe = np.arange(4099, dtype=np.uint16).view(np.uint8)
    state = Hash(functions)
    call(functions.update, state.address, probe.ctypes.data, len(probe), 0)
    return state.hexdigest() == xxhash.xxh3_128_hexdigest(probe.data)


def has_native_hash() -> bool:
    """Whether there are compiled loops, and a ``Hash`` for them."""
    return has_native() and _functions() is not None


def addresses() -> tuple[int, int]:
    """Those of ``pread`` and of the function with which a ``Hash`` takes bytes, for loops."""
    functions = _functions()
    assert functions is not None
    return functions.pread, functions.update


def native_hasher(name: str) -> Hasher:
    """As ``new_hasher``, and a ``Hash`` where that is the same and loops can go on with it."""
    return Hash() if name == OWN_CHECKSUM and has_native_hash() else new_hasher(name)


class Hash:
    """An xxh3-128 whose state compiled loops go on with."""

    def __init__(self, functions: _Xxh3 | None = None) -> None:
        """Raises: RuntimeError where ``has_native_hash`` is False."""
        found = functions or _functions()
        if found is None:
            raise RuntimeError("the library of xxhash does not show its functions")
        self._functions = functions = found
        self.address: int = functions.create() or 0
        if not self.address:
            raise MemoryError("no memory for the state of a hash")
        weakref.finalize(self, functions.free, self.address)
        functions.reset(self.address)

    def __repr__(self) -> str:
        return f"<Hash {self.hexdigest()}>"

    def update(self, data: memoryview, /) -> None:
        """Take the next bytes."""
        content = np.frombuffer(data, np.uint8)
        self._functions.take(self.address, content.ctypes.data, len(content))

    def hexdigest(self) -> str:
        """The checksum of all bytes so far, in lower-case hex digits."""
        digest = self._functions.digest(self.address)
        return f"{digest.high:016x}{digest.low:016x}"
