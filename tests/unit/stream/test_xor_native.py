"""The compiled XOR finds and changes what numpy does, wherever a piece lies."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hotswap.stream import pull, xor_native
from hotswap.stream.encodings import Bytes
from hotswap.stream.xor_native import is_worth_it, xor
from tests.unit.stream.streams import Stream, contents_of


def pair(size: int, share: float) -> tuple[Bytes, Bytes]:
    """A piece, and a change in which ``share`` of the bytes are not zero; the last one never is."""
    source = np.random.default_rng(size)
    change = source.integers(1, 256, size, np.uint8)
    change[source.random(size) >= share] = 0
    change[-1:] = 1
    return source.integers(0, 256, size, np.uint8), change


def check(size: int, share: float, shift: int = 0) -> None:
    room = np.empty(size + shift, np.uint8)
    old, change = pair(size, share)
    piece, plain = room[shift:], old.copy()
    piece[:] = old
    found = xor(piece, change, native=True)
    assert found.tolist() == xor(plain, change, native=False).tolist()
    assert piece.tobytes() == plain.tobytes() == (old ^ change).tobytes()


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 64, 1003])
@pytest.mark.parametrize("share", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("shift", [0, 3])
def test_the_loop_finds_and_changes_what_numpy_does(
    size: int, share: float, shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Python runs it; a piece that lies askew is for numpy."""

    def as_it_is(kernel: Callable[..., object]) -> Callable[..., object]:
        return kernel

    monkeypatch.setattr(xor_native, "compiled", as_it_is)
    check(size, share, shift)


# An optional extra, which `make setup` installs: elsewhere the plain loop above is what there is.
@pytest.mark.skipif(not importlib.util.find_spec("numba"), reason="numba is not installed")
@pytest.mark.parametrize("size", [9, 2**21, 2**21 - 3])
def test_compiled_it_does_the_same(size: int) -> None:
    check(size, 0.01)


@pytest.mark.parametrize("has_it", [True, False])
def test_long_tensors_are_changed_by_it_where_it_is_installed(
    has_it: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[bool]()

    def noted(piece: Bytes, change: Bytes, *, native: bool) -> object:
        asked.append(native)
        return xor(piece, change, native=False)

    monkeypatch.setattr(xor_native, "has_native", lambda: has_it)
    monkeypatch.setattr("hotswap.stream.xor_steps.xor", noted)
    assert [is_worth_it(length) for length in (0, 2**20 - 1, 2**20)] == [False, False, has_it]
    stream = Stream(tmp_path, "xor", length=2**21 + 5, count=1)
    for version in (0, 1):
        pull(stream.local, stream.source, version, base_dir=stream.base)
    assert contents_of(stream.local) == stream.at(1)
    assert set(asked) == {has_it}
