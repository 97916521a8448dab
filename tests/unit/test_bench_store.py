"""What ``store`` measures with, and what it makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrib.bench import store
from contrib.bench.results import Measure
from hotswap.stream import Publisher, prune, published_versions, pull
from hotswap.stream.layout import INDEX, directory_of
from hotswap.stream.objects import Objects
from tests.process.s3_store import access
from tests.unit.stream.streams import contents_of
from tests.unit.stream.trained import after_step, bytes_in, first_state, write_base


def test_the_best_of_each_is_compared_with_both_others() -> None:
    samples = {
        "publish_store": [3.0, 2.0],
        "publish_files": [1.0, 1.0],
        "publish_bare": [1.0, 1.5],
        "full_store": [9.0, 8.0],
        "full_files": [1.0, 1.0],
        "full_bare": [4.0, 3.0],
        "delta_store": [0.5, 0.25],
        "delta_files": [0.1, 0.1],
    }
    seen = {one.name: one for one in store._measures(samples, 2_000_000)}
    assert seen["publish: store"].note == "best of 2, 1 MB/s"
    assert seen["full: store / bare"].value == 8 / 3
    assert seen["publish: store / (files + bare)"].value == 1.0
    assert seen["full: store / (files + bare)"].value == 2.0
    assert all(one.verdict == "" for one in seen.values())
    assert seen["delta: store"] == Measure(
        name="delta: store", value=250.0, unit="ms", note="best of 2, spread 100%"
    )


@pytest.mark.long
def test_its_store_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "objects" / "bench").mkdir(parents=True)
    states = [first_state()]
    base = write_base(tmp_path / "base", states[0])
    with store._store(tmp_path / "objects") as endpoint:
        for name, value in access(endpoint, tmp_path / "none").items():
            monkeypatch.setenv(name, value)
        place = Objects.at("s3://bench/run")
        assert published_versions(place) == ()
        with Publisher(place, run="a", base_dir=base, threads=1, anchor_every=2) as publisher:
            for step in range(1, 4):
                states.append(after_step(states[-1], step))
                publisher.publish(states[-1])
                pull(tmp_path / "local", str(place), step, base_dir=base, threads=1)
                assert contents_of(tmp_path / "local") == bytes_in(states[step])
        assert prune(place, keep=1).removed == (1,)
        index = directory_of(place, 3) / INDEX
        with pytest.raises(FileExistsError):
            index.store.put(index.url, b"{}", new=True)
        # One that is sent in parts.
        long = place / "long"
        content = bytes(range(256)) * (400 * 2**10)
        long.store.put(long.url, content)
        assert long.content() == content
        assert store._most(endpoint) >= 1


def test_its_process_ends_with_its_input(tmp_path: Path) -> None:
    with store._store(tmp_path) as endpoint:
        assert store._most(endpoint) == 0
    with pytest.raises(OSError, match="refused"):
        store._most(endpoint)
