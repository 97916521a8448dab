"""Logs are written into the files beside pulls, and whoever wants the directory goes first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest

from hotswap.pulls import Puller
from hotswap.pulls.compactor import Compactor
from hotswap.pulls.logs import LogSizes
from hotswap.stream import Keep, LocalBusy, Progress, PullMode, lock, materialize, pull
from hotswap.stream.append import LogLimits
from hotswap.stream.in_place import STAGING
from hotswap.stream.lock import exclusive, reading
from hotswap.stream.log import holding_in
from hotswap.stream.recorded import RecordedBase
from hotswap.stream.state import Reserved
from tests.unit.stream.streams import Stream, contents_of

LIMITS = LogLimits(share=100.0)


def logged(tmp_path: Path, versions: int) -> Stream:
    """A local checkpoint with ``versions`` in its log."""
    stream = Stream(tmp_path, *("gap",) * versions)
    for target in range(versions + 1):
        pull(
            stream.local,
            stream.source,
            target,
            base_dir=stream.base,
            threads=1,
            keep=Keep.LOG,
            limits=LIMITS,
        )
    return stream


def versions_beside(stream: Stream) -> int:
    held = holding_in(stream.local)
    assert held is not None
    return len(held.versions)


@contextmanager
def compacting() -> Iterator[tuple[Compactor, LogSizes, threading.Event]]:
    """A compactor, and what is set when it has seen to a directory."""
    sizes, through = LogSizes(), threading.Event()
    compactor = Compactor(
        sizes, threads=1, limits=LIMITS, idle_s=0.001, done=lambda _: through.set()
    )
    try:
        yield compactor, sizes, through
    finally:
        compactor.stop()
    assert not [one for one in threading.enumerate() if one.name == "hotswap-compact"]


def test_a_log_that_is_half_as_long_as_it_may_be_is_written_into_the_files(
    tmp_path: Path,
) -> None:
    stream = logged(tmp_path, 4)
    with compacting() as (compactor, sizes, through):
        assert sizes.look(stream.local).versions == sizes.versions == 4
        assert sizes.size_bytes > 0
        compactor.look(stream.local)
        assert through.wait(60)
        assert (sizes.versions, sizes.size_bytes) == (0, 0)
    assert versions_beside(stream) == 0
    assert contents_of(stream.local) == stream.at(4)
    assert repr(sizes) == "<LogSizes 0 versions, 0 bytes>"


def test_a_short_one_is_left(tmp_path: Path) -> None:
    stream = logged(tmp_path, 3)
    with compacting() as (compactor, _, _):
        compactor.look(stream.local)
        assert repr(compactor) == "<Compactor 0 directories due>"
        compactor.look(tmp_path / "absent")
        assert repr(compactor) == "<Compactor 0 directories due>"
    assert versions_beside(stream) == 3


def test_it_waits_for_who_reads_and_then_goes_on(tmp_path: Path) -> None:
    stream = logged(tmp_path, 4)
    with compacting() as (compactor, _, through):
        with reading(stream.local):
            compactor.look(stream.local)
            compactor.look(stream.local)
            assert not through.is_set()
            assert versions_beside(stream) == 4
        assert through.wait(60)
    assert versions_beside(stream) == 0


def test_one_that_ends_leaves_the_log(tmp_path: Path) -> None:
    stream = logged(tmp_path, 4)
    with compacting() as (compactor, _, through), reading(stream.local):
        compactor.look(stream.local)
        compactor.stop()
        compactor.look(stream.local)
        assert not through.is_set()
    assert versions_beside(stream) == 4


def test_what_is_wrong_is_told_and_is_the_next_pulls_to_find(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = logged(tmp_path, 4)
    for file in Reserved(stream.local).log.iterdir():
        file.write_bytes(b"")
    with compacting() as (compactor, _, through):
        compactor.look(stream.local)
        assert through.wait(60)
    assert "its log stays beside its files" in caplog.text
    assert versions_beside(stream) == 4


def test_files_that_come_and_go_are_no_reason_to_end(tmp_path: Path) -> None:
    """As another process leaves them for a moment, which holds the lock; a look takes none."""
    stream = logged(tmp_path, 4)
    kept = tmp_path / "kept"
    kept.mkdir()
    weights = sorted(stream.local.glob("*.safetensors"))
    with compacting() as (compactor, _, through):
        for path in weights:
            path.rename(kept / path.name)
        compactor.look(stream.local)
        assert repr(compactor) == "<Compactor 0 directories due>"
        for path in weights:
            (kept / path.name).rename(path)
        with reading(stream.local):
            compactor.look(stream.local)  # due, and not before this reads no more
            for path in weights:
                path.rename(kept / path.name)
        assert through.wait(60)
        for path in weights:
            (kept / path.name).rename(path)
        through.clear()
        compactor.look(stream.local)
        assert through.wait(60)
    assert versions_beside(stream) == 0
    assert contents_of(stream.local) == stream.at(4)


def test_one_that_was_stopped_says_so(tmp_path: Path) -> None:
    stream = logged(tmp_path, 1)
    with pytest.raises(LocalBusy, match="its log stays as it is") as stopped:
        materialize(stream.local, threads=1, stop=lambda: True)
    assert stopped.value.local_version == 1
    assert versions_beside(stream) == 1


async def test_a_server_compacts_what_its_pulls_leave(tmp_path: Path) -> None:
    stream = Stream(tmp_path, length=50_000)
    for _ in range(4):
        stream.add("gap", share=0.004)
    puller = Puller(RecordedBase.of(stream.base), threads=1, keep=Keep.LOG)
    other = Puller(RecordedBase.of(stream.base), threads=1, keep=Keep.LOG)
    puller.relay_all([SimpleNamespace(puller=other)])
    assert other.logs is puller.logs
    other._compactor._idle_s = 0.001  # what a server waits is nothing to wait for here
    for target in range(5):
        seen = await other.pull(str(stream.local), str(stream.source), target)
        assert seen.mode is (PullMode.LOG if target else PullMode.SEED)
        # The last makes it long, and may be in the files by now.
        assert target == 4 or puller.logs.versions == target
        assert (puller.logs.size_bytes > 0) == (puller.logs.versions > 0)
    thread = other._compactor._thread
    if thread is not None:  # else it is through already
        await anyio.to_thread.run_sync(thread.join, 60)
    assert puller.logs.versions == 0
    assert versions_beside(stream) == 0
    assert contents_of(stream.local) == stream.at(4)


@pytest.mark.parametrize("who", [exclusive, reading])
def test_it_makes_room_for_who_waits(
    tmp_path: Path, who: Callable[..., AbstractContextManager[object]]
) -> None:
    """A pull, or an update: it has the directory before a byte of the files was written."""
    stream = logged(tmp_path, 4)
    begun, seen = threading.Event(), list[object]()

    def waits() -> None:
        begun.wait(60)
        with who(stream.local, timeout_s=60):
            seen.append(contents_of(stream.local))

    waiter = threading.Thread(target=waits)
    waiter.start()

    def progress(step: Progress) -> None:
        assert step.phase == STAGING
        begun.set()
        while not lock._waiting:
            threading.Event().wait(0.001)

    with pytest.raises(LocalBusy, match="its log stays as it is"):
        materialize(stream.local, threads=1, progress=progress, stop=lambda: False)
    waiter.join(60)
    assert seen == [stream.at(0)]
