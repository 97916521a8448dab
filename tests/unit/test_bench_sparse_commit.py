"""What ``sparse_commit`` measures with, and what it makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrib.bench import sparse_commit
from hotswap.stream import published_versions, pull
from tests.unit.stream.streams import contents_of, made, write_checkpoint


def test_its_stream_is_made_once_and_can_be_pulled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse_commit, "BENCH_DIR", tmp_path)
    tensors = {name: value[:3000] for name, value in made(count=2).items()}
    base = write_checkpoint(tmp_path / "base", tensors)
    source = sparse_commit.published(base, 0.01, versions=2)
    assert source == sparse_commit.published(base, 0.01, versions=2)
    assert published_versions(source) == (1, 2)
    pull(tmp_path / "local", source, 2, base_dir=base, threads=1)
    before, after = contents_of(base), contents_of(tmp_path / "local")
    assert before.keys() == after.keys()
    assert all(before[name] != after[name] for name in before)


def test_the_best_of_each_kind_are_compared() -> None:
    rounds = sparse_commit._Rounds(
        sparse_ms=[12.0, 10.0],
        dense_ms=[40.0, 50.0],
        sparse_staged_ms=[3.0],
        dense_staged_ms=[9.0],
        elements=7,
    )
    measures = sparse_commit._measures((0.01, "plain"), rounds)
    assert [one.value for one in measures] == [40.0, 10.0, 0.25]
    assert [one.limit for one in measures] == [None, None, 0.8]
    assert measures[1].note == "best of 2, spread 20%, 7 elements; staged 3 ms"
    assert measures[2].passed
