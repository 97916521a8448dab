"""What a server loads before it serves is all that its pulls and sparse commits will call."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from hotswap import loops_at_start, native
from hotswap.loops_at_start import load_loops
from hotswap.native import compiled
from hotswap.sparse.kernel import scatter_words
from hotswap.sparse.scatter import spots_of
from hotswap.stream import Keep, fused, gap_native, pull, several
from hotswap.stream.gap_kernels import change_elements, xor_told
from hotswap.stream.gap_layout import count_gaps, join_two
from tests.unit.stream.streams import Stream, held_contents

_LENGTH = 2**20 + 8  # the shortest that is worth it, and some words


def kinds() -> list[list[object]]:
    """For which kinds of arguments each loop has been compiled."""
    loops = (xor_told, change_elements, scatter_words)
    ready: list[Any] = [compiled(loop) for loop in loops]
    ready += [compiled(loop, brief=True) for loop in (count_gaps, join_two)]
    ready += [loop() for loop in (gap_native._in_turn, fused._loop, several._loop)]
    return [list(loop.signatures) for loop in ready]


# An optional extra, which `make setup` installs: without it there is nothing to load.
@pytest.mark.skipif(not importlib.util.find_spec("numba"), reason="numba is not installed")
def test_nothing_is_compiled_after_the_start(tmp_path: Path) -> None:
    native.compiled.cache_clear()
    assert load_loops([1, _LENGTH])
    at_start = kinds()
    assert [len(kinds) for kinds in at_start] == [1, 4, 1, 2, 1, 2, 3, 3]
    for encoding, keep in (("xor", Keep.FILES), ("gap", Keep.FILES), ("gap", Keep.LOG)):
        root = tmp_path / encoding / keep
        stream = Stream(root, encoding, length=_LENGTH, count=1)
        for version in (0, 1):
            pull(stream.local, stream.source, version, base_dir=stream.base, keep=keep)
        assert held_contents(stream.local) == stream.at(1)
    live, index = torch.zeros(8, dtype=torch.int64), torch.tensor([1, 5]).numpy().astype("u4")
    for spot in spots_of(live, index, torch.tensor([7, 9]).numpy(), width=2):
        spot.keep()
        spot.write()
    assert live.tolist() == [0, 7, 0, 0, 0, 9, 0, 0]
    assert kinds() == at_start


def test_a_small_model_is_no_reason_to_load_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops_at_start, "compiled", None)
    assert not load_loops([])
    assert not load_loops([2**20 - 1])
