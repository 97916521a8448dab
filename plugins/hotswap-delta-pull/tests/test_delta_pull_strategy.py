"""Which version is meant, where its copy lies, and that a copy is what was asked for."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from hotswap_delta_pull import DeltaPullStrategy
from hotswap_delta_pull.strategy import wanted_version

from hotswap.errors import UpdateRejected
from hotswap.options import option_values
from hotswap.plugins import load_plugins, resolve_strategies
from hotswap.settings import OPTIONS
from hotswap.stream import OutsideRoots, SourceNotReady, directory_of, publish_delta
from hotswap.stream.objects import Objects
from hotswap.stream.place import place_of
from hotswap.types import Placement, Readable, Update

VALUES = [np.full(64, value, np.float32) for value in (0, 1, 2, 3)]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    directory = tmp_path / "base"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    content = safetensors.numpy.save({"w": VALUES[0]})
    (directory / "model.safetensors").write_bytes(content)
    return directory


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for version, encoding in ((1, "xor"), (2, "overwrite"), (3, "xor")):
        old, new = (VALUES[at].view(np.uint8) for at in (version - 1, version))
        publish_delta(tmp_path / "stream", version, [[("w", old, new)]], encoding=encoding)
    return tmp_path / "stream"


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    (tmp_path / "copies").mkdir()
    return tmp_path / "copies"


@pytest.fixture
def strategy(base: Path, copies: Path) -> DeltaPullStrategy:
    return DeltaPullStrategy.from_options({"model": str(base), "local-root": (str(copies),)})


async def value_of(strategy: DeltaPullStrategy, source: object, version: str | None) -> float:
    update = Update(source=str(source), version=version)
    async with strategy.open(update, Placement()) as stage:
        ((name, payload),) = [pair for bucket in stage.buckets() for pair in bucket]
        assert name == "w"
        assert isinstance(payload, Readable)
        out = torch.empty(payload.spec.shape, dtype=payload.spec.dtype)
        await asyncio.to_thread(payload.read_into, out)
    (value,) = set(out.tolist())
    return float(value)


async def test_every_version_in_one_call(
    strategy: DeltaPullStrategy, source: Path, copies: Path
) -> None:
    for target in (1, 2, 2, 0, 3, 1):
        assert await value_of(strategy, source, str(target)) == target
    assert await value_of(strategy, directory_of(source, 2), "any-label") == 2
    assert await value_of(strategy, f"{directory_of(source, 3)}/", None) == 3
    (copy,) = os.listdir(copies)
    assert copy.startswith("stream-")


async def test_two_sources_have_two_copies(
    strategy: DeltaPullStrategy, source: Path, copies: Path, tmp_path: Path
) -> None:
    (tmp_path / "again").symlink_to(source)
    (tmp_path / "other").mkdir()
    for place in (source, tmp_path / "again"):
        assert await value_of(strategy, place, "1") == 1
    assert await value_of(strategy, tmp_path / "other", "0") == 0
    assert len(os.listdir(copies)) == 2


async def test_a_version_that_is_not_there_says_so(
    strategy: DeltaPullStrategy, source: Path
) -> None:
    assert await value_of(strategy, source, "2") == 2
    with pytest.raises(SourceNotReady) as caught:
        await value_of(strategy, source, "9")
    assert (caught.value.retryable, caught.value.local_version) == (True, 2)
    assert await value_of(strategy, source, "2") == 2


async def test_while_it_is_read_nobody_pulls_it_away(
    strategy: DeltaPullStrategy, source: Path
) -> None:
    """A second update waits for the first one to have read its version."""
    first = strategy.open(Update(source=str(source), version="1"), Placement())
    async with first as stage:
        second = asyncio.ensure_future(value_of(strategy, source, "2"))
        await asyncio.sleep(0)
        ((_, payload),) = [pair for bucket in stage.buckets() for pair in bucket]
        assert isinstance(payload, Readable)
        out = torch.empty(payload.spec.shape, dtype=payload.spec.dtype)
        await asyncio.to_thread(payload.read_into, out)
        assert set(out.tolist()) == {1.0}
        assert not second.done()
    assert await second == 2


async def test_ranks_of_one_host_read_one_copy(strategy: DeltaPullStrategy, source: Path) -> None:
    update = Update(source=str(source), version="3")
    async with (
        strategy.open(update, Placement(rank=0, world_size=2)) as one,
        strategy.open(update, Placement(rank=1, world_size=2)) as two,
    ):
        assert one.manifest.names == two.manifest.names


async def test_one_that_is_always_pulled_away_gives_up(
    strategy: DeltaPullStrategy, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategy.puller, "holds", lambda *_, **__: False)
    with pytest.raises(UpdateRejected, match="was pulled to other versions 3 times"):
        await value_of(strategy, source, "1")


async def test_what_the_last_pull_brought_is_read(
    strategy: DeltaPullStrategy, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, holds = iter(range(9)), strategy.puller.holds
    monkeypatch.setattr(
        strategy.puller, "holds", lambda *of, **how: next(asked) > 2 and holds(*of, **how)
    )
    assert await value_of(strategy, source, "1") == 1


async def test_a_source_of_any_name_has_a_copy(strategy: DeltaPullStrategy, tmp_path: Path) -> None:
    (tmp_path / ("\N{OLD PERSIAN SIGN A}" * 60)).mkdir()
    assert await value_of(strategy, tmp_path / ("\N{OLD PERSIAN SIGN A}" * 60), "0") == 0


@pytest.fixture
def place(source: Path, tmp_path: Path) -> Iterator[Objects]:
    """``source`` in the object store of this process."""
    place = place_of(f"memory://{tmp_path.name}/run")
    assert isinstance(place, Objects)
    for path in source.rglob("*.*"):
        target = place / path.parent.name / path.name
        target.store.put(target.url, path.read_bytes())
    yield place
    for name in place.names():
        directory, _, file = name.partition("/")
        target = place / directory / file
        target.store.delete(target.url)


async def test_a_url_has_a_copy_and_needs_a_root(base: Path, copies: Path, place: Objects) -> None:
    values = {"model": str(base), "local-root": (str(copies),)}
    with pytest.raises(OutsideRoots, match="pulls from directories only"):
        await value_of(DeltaPullStrategy.from_options(values), place, "2")
    strategy = DeltaPullStrategy.from_options({**values, "source-root": (str(place),)})
    assert await value_of(strategy, place, "2") == 2
    assert await value_of(strategy, f"{place}/weight_v000003", None) == 3
    (copy,) = os.listdir(copies)
    assert copy.startswith("run-")


async def test_without_a_root_there_is_no_place(base: Path, source: Path) -> None:
    strategy = DeltaPullStrategy.from_options({"model": str(base)})
    with pytest.raises(UpdateRejected, match="start the server with --local-root DIR"):
        await value_of(strategy, source, "1")
    assert repr(strategy) == "<DeltaPullStrategy into no directory>"


@pytest.mark.parametrize(
    ("source", "version", "wanted"),
    [
        ("/s/weight_v000007", None, ("/s", 7)),
        ("/s/weight_v000007/", "label", ("/s", 7)),
        ("/s/weight_v1000000", None, ("/s", 1000000)),
        ("/s", "7", ("/s", 7)),
        ("/s", "000007", ("/s", 7)),
        ("/s", "0", ("/s", 0)),
        ("/s/weight_v7", "8", ("/s/weight_v7", 8)),
        ("s3://b/s/weight_v000007/", "label", ("s3://b/s", 7)),
        ("s3://b/s", "7", ("s3://b/s", 7)),
    ],
)
def test_the_version_that_is_meant(
    source: str, version: str | None, wanted: tuple[str, int]
) -> None:
    found, target = wanted_version(Update(source=source, version=version))
    assert (str(found), target) == wanted


@pytest.mark.parametrize(
    ("source", "version"),
    [
        ("", "1"),
        ("a\0b", "1"),
        ("/s", None),
        ("/s", "new"),
        ("/s", "-1"),
        ("/s", "9" * 19),
        ("s3://b/s", None),
        ("s3://key:pass@b/s", "1"),
    ],
)
def test_what_names_no_version_is_refused(source: str, version: str | None) -> None:
    with pytest.raises(UpdateRejected, match="wanted"):
        wanted_version(Update(source=source, version=version))


def test_it_is_found_and_made(base: Path, copies: Path) -> None:
    values = option_values(OPTIONS, environ={"HOTSWAP_LOCAL_ROOT": str(copies)})
    made = resolve_strategies(load_plugins(), {**values, "model": str(base)})
    assert repr(made["delta-pull"]) == f"<DeltaPullStrategy into {copies}>"
