"""Pulls for a server: one after another, to their end, told of on the event loop."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from hotswap.errors import Busy
from hotswap.plugin_hooks import PreReadHook
from hotswap.pulls import Puller, PullNews
from hotswap.stream import BaseChanged, OutsideRoots, PullMode, SourceNotReady, VersionMissing
from tests.unit.stream.streams import Stream, contents_of


class Gate:
    """A pre-read hook that waits on the event loop until it is told to go on."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str | None]] = []
        self.arrived: asyncio.Event = asyncio.Event()
        self.released: asyncio.Event = asyncio.Event()
        self.threads: set[str] = set()

    async def __call__(self, source: str, version: str | None) -> None:
        self.calls.append((source, version))
        self.threads.add(threading.current_thread().name)
        self.arrived.set()
        await self.released.wait()

    @property
    def hook(self) -> PreReadHook:
        return PreReadHook(name="gate", call=self)


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Stream(tmp_path, "xor", "overwrite", "xor")


def puller_of(stream: Stream, *hooks: PreReadHook, **values: object) -> Puller:
    return Puller.from_options({"model": str(stream.base), **values}, hooks=hooks)


def bound(puller: Puller, stream: Stream) -> Callable[[int], Any]:
    return functools.partial(puller.pull, str(stream.local), str(stream.source))


async def test_it_pulls_and_tells(stream: Stream) -> None:
    puller, heard = puller_of(stream), list[PullNews]()
    puller.observe(heard.append)
    pull = bound(puller, stream)
    reports = [await pull(target) for target in (0, 1, 1, 3, 2)]
    assert [report.mode for report in reports] == ["seed", "delta", "noop", "fold", "reseed"]
    assert contents_of(stream.local) == stream.at(2)
    ends = [news for news in heard if news.outcome is not None]
    assert [news.fields()["phase"] for news in ends] == ["done"] * 5
    assert [news.fields()["mode"] for news in ends] == [report.mode for report in reports]
    first = [news for news in heard if news.number == 1]
    assert [news.phase for news in first][:: len(first) - 1] == ["received", "done"]
    assert "seed" in {news.phase for news in first}
    steps = [news.fields() for news in first if news.progress is not None]
    assert {step["total_bytes"] for step in steps if step["phase"] == "seed"} != {0}


async def test_a_failure_is_told_with_what_is_there(stream: Stream) -> None:
    puller, heard = puller_of(stream), list[PullNews]()
    puller.observe(heard.append)
    await bound(puller, stream)(1)
    with pytest.raises(SourceNotReady):
        await bound(puller, stream)(9)
    told = heard[-1].fields()
    assert (told["phase"], told["local_version"]) == ("source_not_ready", 1)
    assert "weight_v000009" in str(told["reason"])


async def test_an_observer_that_fails_hurts_nobody(stream: Stream) -> None:
    puller, heard = puller_of(stream), list[PullNews]()

    def failing(_news: PullNews) -> None:
        raise RuntimeError("not mine")

    puller.observe(failing)
    puller.observe(heard.append)
    assert (await bound(puller, stream)(1)).version == 1
    assert heard[-1].outcome == "done"


async def test_the_hooks_run_on_the_event_loop_once_a_pull(stream: Stream) -> None:
    gate = Gate()
    puller = puller_of(stream, gate.hook)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(bound(puller, stream)(2))
        await gate.arrived.wait()
        assert not stream.local.joinpath("model.safetensors").exists()
        gate.released.set()
    assert running.result().mode == PullMode.SEED
    assert gate.calls == [(str(stream.source), "2")]
    assert gate.threads == {threading.current_thread().name}


async def test_a_hook_that_fails_rejects_the_pull(stream: Stream) -> None:
    async def failing(_source: str, _version: str | None) -> None:
        raise OSError("the mount is gone")

    puller = puller_of(stream, PreReadHook(name="mounts", call=failing))
    with pytest.raises(SourceNotReady, match=r"mounts: pre-read hook failed.*the mount is gone"):
        await bound(puller, stream)(1)


async def test_of_pulls_of_one_version_at_once_one_does_the_work(stream: Stream) -> None:
    gate = Gate()
    puller = puller_of(stream, gate.hook)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(bound(puller, stream)(2))
        await gate.arrived.wait()
        others = [tasks.create_task(bound(puller, stream)(2)) for _ in range(3)]
        last = tasks.create_task(bound(puller, stream)(3))
        await anyio.wait_all_tasks_blocked()
        gate.released.set()
    assert first.result().mode == PullMode.SEED
    reports = [other.result() for other in others]
    assert {(report.mode, report.version, report.versions) for report in reports} == {
        (PullMode.NOOP, 2, ())
    }
    assert last.result().mode == PullMode.DELTA
    assert [version for _, version in gate.calls] == ["2", "3"]


async def test_one_that_waits_can_be_cancelled_and_does_nothing(stream: Stream) -> None:
    gate, heard = Gate(), list[PullNews]()
    puller = puller_of(stream, gate.hook)
    puller.observe(heard.append)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(bound(puller, stream)(2))
        await gate.arrived.wait()
        with anyio.move_on_after(0) as waiting:
            await bound(puller, stream)(3)
        gate.released.set()
    assert waiting.cancelled_caught
    assert first.result().version == 2
    assert [news.outcome for news in heard if news.outcome] == ["cancelled", "done"]
    assert contents_of(stream.local) == stream.at(2)


async def test_one_that_has_begun_runs_to_its_end(stream: Stream) -> None:
    gate, heard = Gate(), list[PullNews]()
    puller = puller_of(stream, gate.hook)
    puller.observe(heard.append)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bound(puller, stream), 2)
            await gate.arrived.wait()
            scope.cancel()
            gate.released.set()
    assert scope.cancelled_caught
    assert heard[-1].outcome == "cancelled"
    assert contents_of(stream.local) == stream.at(2)
    assert (await bound(puller, stream)(2)).mode == PullMode.NOOP


async def test_one_that_waits_too_long_is_busy(stream: Stream) -> None:
    gate = Gate()
    known = puller_of(stream)
    puller = Puller(known.base, pre_read=blocking(gate), wait_s=0)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(bound(puller, stream)(1))
        await gate.arrived.wait()
        with pytest.raises(Busy, match="pull waited 0 s and another one is still running"):
            await bound(puller, stream)(2)
        gate.released.set()
    assert first.result().version == 1


def blocking(gate: Gate) -> Callable[[Path, int], None]:
    loop = asyncio.get_running_loop()

    def look(source: Path, target: int) -> None:
        asyncio.run_coroutine_threadsafe(gate(str(source), str(target)), loop).result()

    return look


@pytest.mark.skipif(sys.platform != "linux", reason="a niceness for each thread is Linux's")
async def test_its_threads_are_nicer_and_no_others(stream: Stream) -> None:
    seen = list[int]()

    def look(source: Path, target: int) -> None:
        seen.append(os.nice(0))

    before = os.nice(0)
    puller = Puller(puller_of(stream).base, pre_read=look)
    assert (await bound(puller, stream)(1)).mode == PullMode.SEED
    assert seen == [min(19, before + 10)]
    assert await anyio.to_thread.run_sync(os.nice, 0) == before


# --- where


async def test_a_link_out_of_the_roots_is_outside(stream: Stream, tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    puller = puller_of(
        stream, **{"local-root": (str(inside),), "source-root": (str(stream.source),)}
    )
    for local in (inside / "link" / "copy", outside, inside / ".." / "outside"):
        with pytest.raises(OutsideRoots, match="local_checkpoint_dir"):
            await puller.pull(str(local), str(stream.source), 1)
    assert list(outside.iterdir()) == []
    (inside / "stream").symlink_to(tmp_path)
    with pytest.raises(OutsideRoots, match="source_dir"):
        await puller.pull(str(inside / "copy"), str(inside / "stream" / "base"), 1)
    report = await puller.pull(str(inside / "copy"), str(stream.source), 1)
    assert report.version == 1


async def test_without_roots_a_directory_of_somebody_s_is_left_alone(
    stream: Stream, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.json").write_text("mine")
    puller = puller_of(stream)
    with pytest.raises(OutsideRoots, match=r"holds 'config.json', which no pull wrote"):
        await puller.pull(str(home), str(stream.source), 0)
    assert (home / "config.json").read_text() == "mine"
    assert sorted(path.name for path in home.iterdir()) == ["config.json"]
    rooted = puller_of(stream, **{"local-root": (str(tmp_path),)})
    await rooted.pull(str(home), str(stream.source), 0)
    assert contents_of(home) == stream.at(0)
    # It is a pull's now.
    await puller.pull(str(home), str(stream.source), 1)


async def test_a_pull_that_failed_first_can_be_sent_again(stream: Stream) -> None:
    puller = puller_of(stream)
    with pytest.raises(SourceNotReady):
        await bound(puller, stream)(7)
    assert [path.name for path in stream.local.iterdir()] == [".weight_sync"]
    assert (await bound(puller, stream)(1)).mode == PullMode.SEED


async def test_prefetch_of_the_base_with_one_directory_for_both(stream: Stream) -> None:
    """Stitch: source_dir == local_checkpoint_dir, target 0."""
    puller = puller_of(stream)
    for mode in ("seed", "noop"):
        report = await puller.pull(str(stream.local), str(stream.local), 0)
        assert report.mode == mode
    assert contents_of(stream.local) == stream.at(0)
    with pytest.raises(OutsideRoots, match="lie in one another"):
        await puller.pull(str(stream.local), str(stream.local), 1)


async def test_an_empty_or_missing_source_seeds_from_the_base(
    stream: Stream, tmp_path: Path
) -> None:
    puller = puller_of(stream)
    empty = tmp_path / "empty"
    empty.mkdir()
    for source in (empty, tmp_path / "missing"):
        await puller.pull(str(stream.local), str(source), 0)
        assert contents_of(stream.local) == stream.at(0)
        with pytest.raises(SourceNotReady) as caught:
            await puller.pull(str(stream.local), str(source), 1)
        assert (caught.value.retryable, caught.value.local_version) == (True, 0)


# --- what


async def test_without_a_model_there_is_no_version_0(stream: Stream) -> None:
    puller = Puller.from_options({})
    with pytest.raises(BaseChanged, match="was started without a model directory"):
        await bound(puller, stream)(0)
    assert repr(puller).startswith("<Puller on None, 1 pulls")


async def test_the_base_is_the_one_of_the_start(stream: Stream, tmp_path: Path) -> None:
    """An update that moves what --model led to moves no base."""
    link = tmp_path / "current"
    link.symlink_to(stream.base)
    puller = Puller.from_options({"model": str(link), "pull-threads": 2})
    link.unlink()
    link.symlink_to(stream.local)
    await bound(puller, stream)(1)
    await bound(puller, stream)(0)
    assert contents_of(stream.local) == stream.at(0)


async def test_a_gap_names_the_version(stream: Stream) -> None:
    puller = puller_of(stream)
    (stream.source / "weight_v000002").rename(stream.source / "gone")
    with pytest.raises(VersionMissing, match="version 2 is missing on the way to 3"):
        await bound(puller, stream)(3)


@pytest.mark.parametrize("option", ["local-root", "source-root"])
@pytest.mark.parametrize("value", ["text", ("",), ("/nonexistent/root",)])
def test_a_root_that_is_none_is_refused(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{option} "):
        Puller.from_options({option: value})


def test_it_knows_what_is_there(stream: Stream) -> None:
    puller = puller_of(stream)
    assert not puller.holds(stream.local, stream.source, 0, looks=True)
    asyncio.run(bound(puller, stream)(0))
    assert puller.holds(stream.local, stream.source, 0, looks=True)
    assert not puller.holds(stream.local, stream.source, 1, looks=True)
    unreadable = stream.local / ".weight_sync" / "state.json"
    unreadable.unlink()
    unreadable.symlink_to(unreadable)
    assert not puller.holds(stream.local, stream.source, 0, looks=True)
