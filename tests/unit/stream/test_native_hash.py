"""The hash that compiled loops go on with is the one of the package, or is done without."""

from __future__ import annotations

import ctypes
import importlib.util

import numpy as np
import pytest
import xxhash

from hotswap.native_calls import address_of, call
from hotswap.stream import native_hash
from hotswap.stream.encodings import Encoding, hasher_for
from hotswap.stream.native_hash import Hash, addresses, has_native_hash, native_hasher

# An optional extra, which `make setup` installs.
pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("numba"), reason="numba is not installed"
)


def test_a_library_that_shows_nothing_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_native_hash()
    functions = native_hash._functions
    functions.cache_clear()
    try:
        monkeypatch.setattr(native_hash, "_LIBRARY", "no.such.module")
        assert not has_native_hash()
        assert isinstance(native_hasher("xxh3-128"), xxhash.xxh3_128)
        with pytest.raises(RuntimeError, match="does not show its functions"):
            Hash()
        functions.cache_clear()
        monkeypatch.setattr(native_hash, "_LIBRARY", "_ctypes")  # a library, and another one
        assert not has_native_hash()
        functions.cache_clear()
        monkeypatch.undo()
        monkeypatch.setattr(Hash, "hexdigest", lambda one: "0" * 32)
        assert not has_native_hash()
    finally:
        functions.cache_clear()


def test_a_hash_is_the_one_of_the_package() -> None:
    assert Hash().hexdigest() == xxhash.xxh3_128_hexdigest(b"")
    for size in (0, 1, 17, 240, 241, 5000):
        content = np.random.default_rng(size).integers(0, 256, size, np.uint8)
        state = Hash()
        call(addresses()[1], state.address, content.ctypes.data, size, 0)
        state.update(content.data)
        assert state.hexdigest() == xxhash.xxh3_128_hexdigest(content.tobytes() * 2)
        assert repr(state) == f"<Hash {state.hexdigest()}>"
    assert address_of(ctypes.CDLL(None), "no_such_function") == 0


def test_it_is_used_where_it_is_the_same() -> None:
    assert isinstance(hasher_for(Encoding.GAP, "xxh3-128"), Hash)
    assert isinstance(hasher_for(Encoding.XOR, "xxh3-128"), xxhash.xxh3_128)
    assert not isinstance(hasher_for(Encoding.GAP, "adler32"), Hash)
