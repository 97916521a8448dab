"""What ``stream_wire`` measures with: the changes, and both ways to publish them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from contrib.bench import stream_wire, stream_wire_stream
from hotswap.stream import pull
from tests.unit.stream.streams import contents_of, made, write_checkpoint

SHARE = 0.01


def test_a_share_of_the_elements_moves_by_one_step() -> None:
    old = made(length=200_000, count=1)
    old = {name: value[: len(value) // 2 * 2] for name, value in old.items()}
    [(name, new)] = stream_wire_stream.stepped(old, SHARE, seed=1).items()
    moved = new.view(np.int16) - old[name].view(np.int16)
    assert 0.009 < np.count_nonzero(moved) / len(moved) <= 0.01
    assert set(moved.tolist()) == {-1, 0, 1}


def test_both_sources_lead_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_wire_stream, "BENCH_DIR", tmp_path)
    tensors = {name: value[:3000] for name, value in made(count=2).items()}
    base = write_checkpoint(tmp_path / "base", tensors)
    xor, gap = stream_wire_stream.published(base, SHARE, xor=1, gap=2)
    for source, version in ((xor, 1), (gap, 1), (gap, 2)):
        pull(tmp_path / source.name, source, version, base_dir=base, threads=1)
    again = stream_wire_stream.published(base, SHARE, xor=1, gap=2)
    assert again == (xor, gap)
    after = stream_wire_stream.stepped(
        stream_wire_stream.stepped(tensors, SHARE, seed=1), SHARE, seed=2
    )
    assert contents_of(tmp_path / "gap") == {n: value.tobytes() for n, value in after.items()}


def test_limits_are_those_that_were_promised() -> None:
    sizes = {"gap": 100 + 64 * 2, "xor": 100}
    assert stream_wire._wire_measure(0.001, sizes, 2).passed
    assert not stream_wire._wire_measure(SHARE, {"gap": 56, "xor": 100}, 2).passed
