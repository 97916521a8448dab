"""A stream by an independent writer gives its digests, whichever way it is pulled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hotswap.stream import PullMode, published_versions, pull
from tests.unit.stream.streams import EXPECTED, PUBLISHED, digests_of

LAST = max(map(int, EXPECTED))


def reach(local: Path, version: int) -> PullMode:
    report = pull(local, PUBLISHED / "source", version, base_dir=PUBLISHED / "base")
    assert digests_of(local) == EXPECTED[str(version)]
    assert report.version == version
    return report.mode


def test_the_stream_has_the_versions_that_its_digests_are_of() -> None:
    assert LAST == 8
    assert published_versions(PUBLISHED / "source") == tuple(range(1, LAST + 1))


@pytest.mark.parametrize("version", range(LAST + 1))
def test_every_version_at_once(version: int, tmp_path: Path) -> None:
    assert reach(tmp_path / "local", version) is PullMode.SEED


def test_every_version_after_the_other(tmp_path: Path) -> None:
    modes = [reach(tmp_path / "local", version) for version in range(LAST + 1)]
    assert modes == ["seed", *["delta"] * 6, "reseed", "delta"]


@pytest.mark.parametrize("first", range(6))
def test_a_range_that_mixes_encodings_and_checksums_is_folded(first: int, tmp_path: Path) -> None:
    reach(tmp_path / "local", first)
    assert reach(tmp_path / "local", 6) is (PullMode.FOLD if first < 5 else PullMode.DELTA)


def test_repeats_and_the_way_back(tmp_path: Path) -> None:
    modes = [reach(tmp_path / "local", version) for version in (3, 3, 8, 8, 2, 0, 0)]
    assert modes == ["seed", "noop", "reseed", "noop", "reseed", "reseed", "noop"]


def test_the_base_needs_no_source(tmp_path: Path) -> None:
    for source in (tmp_path / "absent", tmp_path / "local"):
        pull(tmp_path / "local", source, 0, base_dir=PUBLISHED / "base")
        assert digests_of(tmp_path / "local") == EXPECTED["0"]


def test_what_lies_beside_the_weights_comes_along(tmp_path: Path) -> None:
    for version in (1, 8):
        reach(tmp_path / "local", version)
        for name in ("config.json",):
            assert (tmp_path / "local" / name).read_bytes() == (
                PUBLISHED / "base" / name
            ).read_bytes()
    assert sorted(path.name for path in (tmp_path / "local").iterdir()) == [
        ".weight_sync",
        "config.json",
        "model.safetensors",
    ]


def test_the_package_loads_neither_torch_nor_the_server() -> None:
    script = (
        "import hotswap.stream, sys; print([m for m in ('torch', 'starlette') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
