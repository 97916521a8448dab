"""Pulls into one directory wait for each other, and for who reads it."""

from __future__ import annotations

import errno
import importlib
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest

from hotswap.stream import Keep, LocalBusy, PullPending, StreamError, pull, reading
from hotswap.stream.lock import exclusive
from hotswap.stream.state import Reserved
from tests.tiers import mostly_long
from tests.unit.stream.crash_setups import pull_now
from tests.unit.stream.faulty_disk import FaultyDisk
from tests.unit.stream.streams import Stream, contents_of, held_contents


def test_of_many_pulls_at_once_one_does_the_work(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "overwrite")
    together = threading.Barrier(6)

    def one(_: int) -> str:
        together.wait()
        return pull(stream.local, stream.source, 2, base_dir=stream.base, threads=1).mode

    with ThreadPoolExecutor(6) as pool:
        modes = sorted(pool.map(one, range(6)))
    assert modes == ["noop"] * 5 + ["seed"]
    assert contents_of(stream.local) == stream.at(2)


@pytest.mark.parametrize("keep", mostly_long(Keep, but=[Keep.FILES]))
def test_readers_never_see_two_versions(tmp_path: Path, keep: Keep) -> None:
    stream = Stream(tmp_path, *["xor", "overwrite", "gap", "xor"] * 2)
    pull(stream.local, stream.source, 0, base_dir=stream.base)
    over, whole = threading.Event(), [stream.at(version) for version in range(9)]

    def read() -> set[int]:
        seen = set[int]()
        # Unlocked in between for longer than one read takes: a pull waits until neither reads,
        # which two that only read would hardly ever let it see.
        while not over.wait(0.05):
            with reading(stream.local):
                seen.add(whole.index(held_contents(stream.local)))
        return seen

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for target in (1, 2, 1, 5, 8, 0):
                pull_now(stream, target, keep=keep)
        finally:
            over.set()
        seen = {version for reader in readers for version in reader.result()}
    assert seen
    assert contents_of(stream.local) == whole[0]


def test_readers_share_and_keep_pulls_out(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    pull(stream.local, stream.source, 0, base_dir=stream.base)
    with reading(stream.local), reading(stream.local, timeout_s=0):
        with pytest.raises(StreamError, match="was held by another pull or reader for 0 s") as one:
            pull(stream.local, stream.source, 1, base_dir=stream.base, lock_timeout_s=0)
        assert one.value.local_version == 0
    pull(stream.local, stream.source, 1, base_dir=stream.base, lock_timeout_s=0)
    with (
        exclusive(stream.local, timeout_s=0),
        pytest.raises(StreamError, match="was held"),
        reading(stream.local, timeout_s=0),
    ):
        raise AssertionError("two held it")


def test_a_lock_that_was_replaced_while_it_was_waited_for_is_taken_anew(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    for directory in (tmp_path, elsewhere):
        Reserved(directory).home.mkdir(parents=True)
    order = list[str]()

    def wait() -> None:
        with exclusive(tmp_path, timeout_s=60):
            order.append("who waited")

    with ThreadPoolExecutor(1) as pool, ExitStack() as another:
        # Held already when it takes its place: either of the two files has to be waited for.
        another.enter_context(exclusive(elsewhere, timeout_s=0))
        with exclusive(tmp_path, timeout_s=0) as held:
            waits = pool.submit(wait)
            Reserved(elsewhere).lock.replace(Reserved(tmp_path).lock)
            assert not held.counts
        order.append("another")
        another.close()
        waits.result()
    assert order == ["another", "who waited"]


def test_a_lock_that_is_waited_for_may_go_and_come_any_number_of_times(tmp_path: Path) -> None:
    """Two that hold it never meet, whatever becomes of its file between them."""
    Reserved(tmp_path).home.mkdir()
    inside, together = list[int](), threading.Barrier(4)

    def one(number: int) -> None:
        together.wait()
        for _ in range(25):
            with exclusive(tmp_path, timeout_s=60) as held:
                inside.append(number)
                assert held.counts
                assert inside == [number]
                inside.remove(number)
                # As the last thing that its holder does: from here on the next one may come.
                Reserved(tmp_path).lock.unlink()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(4)))
    assert inside == []


@pytest.mark.parametrize("call", ["unlink", "replace"])
def test_a_pull_whose_lock_is_no_longer_one_changes_nothing(tmp_path: Path, call: str) -> None:
    stream = Stream(tmp_path, "xor")
    pull(stream.local, stream.source, 0, base_dir=stream.base)
    lock = Reserved(stream.local).lock

    def fault(_number: int) -> None:
        if disk.calls[-1] == "write":
            lock.unlink(missing_ok=True)
            if call == "replace":
                lock.touch()

    disk = FaultyDisk(fault)
    with pytest.raises(LocalBusy, match="removed or replaced while a pull held it") as caught:
        pull(stream.local, stream.source, 1, base_dir=stream.base, disk=disk)
    assert (caught.value.local_version, caught.value.retryable) == (0, True)
    assert contents_of(stream.local) == stream.at(0)
    pull(stream.local, stream.source, 1, base_dir=stream.base)
    assert contents_of(stream.local) == stream.at(1)


def test_a_directory_that_no_pull_wrote_needs_no_lock(tmp_path: Path) -> None:
    with reading(tmp_path, timeout_s=0):
        assert list(tmp_path.iterdir()) == []


def test_a_half_written_directory_is_not_read(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    pull(stream.local, stream.source, 0, base_dir=stream.base)
    Reserved(stream.local).journal.write_bytes(b"unfinished")
    for _ in range(2):
        with pytest.raises(PullPending, match="pull again") as caught, reading(stream.local):
            raise AssertionError("it was read")
        assert caught.value.retryable
        Reserved(stream.local).lock.unlink(missing_ok=True)


def test_without_flock_the_message_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def absent(name: str) -> ModuleType:
        if name == "fcntl":
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    stream = Stream(tmp_path)
    with pytest.raises(StreamError, match="this operating system has no flock"):
        pull(stream.local, stream.source, 0, base_dir=stream.base)


def test_a_file_system_without_flock_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(importlib.import_module("fcntl"), "flock", refusing)
    stream = Stream(tmp_path)
    with pytest.raises(StreamError, match=r"cannot be locked \(No locks available\)"):
        pull(stream.local, stream.source, 0, base_dir=stream.base)


def test_where_the_module_has_no_flock_the_message_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(importlib.import_module("fcntl"), "flock")
    stream = Stream(tmp_path)
    with pytest.raises(StreamError, match="this operating system has no flock"):
        pull(stream.local, stream.source, 0, base_dir=stream.base)
    with reading(stream.base), pytest.raises(StreamError, match="no flock"), reading(stream.local):
        raise AssertionError("it was read without its lock")
