"""What happens before a pull looks at its source, and what the base has to be."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hotswap.errors import UpdateRejected
from hotswap.stream import (
    BaseChanged,
    LocalBusy,
    SourceNotReady,
    VersionMissing,
    directory_of,
    pull,
    reading,
)
from hotswap.stream.applied import is_applied
from hotswap.stream.look import FirstLook
from hotswap.stream.places import Places
from hotswap.stream.recorded import RecordedBase
from tests.unit.stream.streams import Stream, contents_of


class Looks:
    """A pre-read that remembers its calls, and may publish what it is asked to wait for."""

    def __init__(self, stream: Stream, *, publishes: bool = False) -> None:
        self.calls: list[tuple[Path, int]] = []
        self._stream = stream
        self._publishes = publishes

    def __call__(self, source: Path, target: int) -> None:
        self.calls.append((source, target))
        while self._publishes and len(self._stream.tensors) <= target:
            self._stream.add("xor")


@pytest.mark.parametrize("begin", [None, 0, 1, 2], ids=str)
def test_it_comes_once_and_before_the_first_look(tmp_path: Path, begin: int | None) -> None:
    stream = Stream(tmp_path, "xor", "overwrite")
    if begin is not None:
        pull(stream.local, stream.source, begin, base_dir=stream.base)
    looks = Looks(stream, publishes=True)
    report = pull(stream.local, stream.source, 3, base_dir=stream.base, pre_read=looks)
    assert looks.calls == [(stream.source, 3)]
    assert repr(FirstLook(looks, stream.source, 3)) == f"<FirstLook due at {stream.source}>"
    assert "pre_read" in report.seconds
    assert contents_of(stream.local) == stream.at(3)


def test_a_pull_of_what_is_there_looks_as_well(tmp_path: Path) -> None:
    """Whether the version is still the one that was applied is seen at the source."""
    stream = Stream(tmp_path, "xor")
    pull(stream.local, stream.source, 1, base_dir=stream.base)
    looks = Looks(stream)
    report = pull(stream.local, stream.source, 1, base_dir=stream.base, pre_read=looks)
    assert (report.mode, len(looks.calls)) == ("noop", 1)


def test_the_base_needs_no_look_at_a_source(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    looks = Looks(stream)
    for target in (0, 0):
        pull(stream.local, stream.source, target, base_dir=stream.base, pre_read=looks)
    assert looks.calls == []


@pytest.mark.parametrize("begin", [None, 1], ids=str)
@pytest.mark.parametrize("error", [OSError(5, "stale"), UpdateRejected("slow"), KeyError("x")])
def test_one_that_fails_rejects_the_pull_and_nothing_else(
    tmp_path: Path, begin: int | None, error: Exception
) -> None:
    stream, calls = Stream(tmp_path, "xor", "xor"), list[int]()
    if begin is not None:
        pull(stream.local, stream.source, begin, base_dir=stream.base)

    def failing(_source: Path, target: int) -> None:
        calls.append(target)
        raise error

    with pytest.raises(SourceNotReady, match="its pre-read failed") as caught:
        pull(stream.local, stream.source, 2, base_dir=stream.base, pre_read=failing)
    assert str(error) in str(caught.value)
    assert (caught.value.retryable, caught.value.local_version) == (True, begin)
    assert calls == [2]
    pull(stream.local, stream.source, 2, base_dir=stream.base)
    assert contents_of(stream.local) == stream.at(2)


def test_of_the_pulls_that_wait_for_each_other_one_looks(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    pull(stream.local, stream.source, 0, base_dir=stream.base)
    together, calls = threading.Barrier(5), list[int]()
    begun = [threading.Event() for _ in range(5)]

    def look(_source: Path, target: int) -> None:
        # Held by whoever is first: until all others have asked for the lock.
        calls.append(target)

    def one(number: int) -> str:
        together.wait()
        begun[number].set()
        return pull(
            stream.local, stream.source, 1, base_dir=stream.base, threads=1, pre_read=look
        ).mode

    with ThreadPoolExecutor(5) as pool, reading(stream.local):
        # Nobody gets in while this reads, so that all of them have begun before the first does.
        running = [pool.submit(one, number) for number in range(5)]
        for event in begun:
            event.wait()
        _until_all_wait(stream.local, 5)
    assert sorted(future.result() for future in running) == ["delta", *["noop"] * 4]
    assert calls == [1]


def _until_all_wait(local: Path, count: int) -> None:
    """Until so many descriptors of the lock are open besides the reader's."""
    lock = str(local / ".weight_sync" / "lock")
    while True:
        links = list[str]()
        for name in os.listdir("/proc/self/fd"):
            try:
                links.append(os.readlink(f"/proc/self/fd/{name}"))
            except OSError:
                continue
        if links.count(lock) > count:
            return


def test_who_waited_for_another_version_does_its_own_work(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor")
    looks = Looks(stream)
    for target in (1, 2, 1):
        pull(stream.local, stream.source, target, base_dir=stream.base, pre_read=looks)
        assert contents_of(stream.local) == stream.at(target)
    assert [target for _, target in looks.calls] == [1, 2, 1]


# --- the base, as it was recorded


def test_a_base_that_was_changed_is_no_base(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor")
    recorded = RecordedBase.of(stream.base)
    pull(stream.local, stream.source, 1, base_dir=stream.base, base_digest=recorded.digest)
    os.utime(next(stream.base.glob("*.safetensors")), ns=(1, 1))

    report = pull(stream.local, stream.source, 2, base_dir=stream.base, base_digest=recorded.digest)
    assert report.mode == "delta", "what was made from the right base needs it no more"
    with pytest.raises(BaseChanged, match="is not what it was when the server was started") as told:
        pull(stream.local, stream.source, 0, base_dir=stream.base, base_digest=recorded.digest)
    assert told.value.local_version == 2
    assert str(told.value).endswith(f"{stream.local} holds version 2, whole")
    assert contents_of(stream.local) == stream.at(2)


def test_a_base_that_is_gone_is_told_of(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    shutil.rmtree(stream.base)
    with pytest.raises(BaseChanged, match="the base checkpoint, which is version 0") as told:
        pull(stream.local, stream.source, 1, base_dir=stream.base)
    assert str(told.value).endswith(f"{stream.local} holds no whole version")


def test_a_recorded_base_follows_no_link(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    link = tmp_path / "current"
    link.symlink_to(stream.base)
    recorded = RecordedBase.of(link)
    assert recorded.path == stream.base
    recorded.check()
    assert recorded.digest is not None


def test_what_was_no_checkpoint_when_it_was_recorded_is_no_base(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    recorded = RecordedBase.of(tmp_path)
    assert recorded.digest is None
    with pytest.raises(BaseChanged, match="start the server with a checkpoint of safetensors"):
        recorded.check()


# --- what a failure says of the directory


def test_a_failure_says_what_is_there(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor", "xor")
    pull(stream.local, stream.source, 1, base_dir=stream.base)
    shutil.rmtree(directory_of(stream.source, 2))
    with pytest.raises(VersionMissing, match="version 2 is missing on the way to 3") as told:
        pull(stream.local, stream.source, 3, base_dir=stream.base)
    assert str(told.value).endswith(f"; {stream.local} holds version 1, whole")


def test_one_that_waited_too_long_may_try_again(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    pull(stream.local, stream.source, 0, base_dir=stream.base)
    with reading(stream.local), pytest.raises(LocalBusy) as caught:
        pull(stream.local, stream.source, 1, base_dir=stream.base, lock_timeout_s=0)
    assert caught.value.retryable


# --- whether a pull would do anything


def test_what_is_applied_is_known_without_a_lock(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor")
    other = Stream(tmp_path / "other", "xor", "xor")
    places = Places(local=stream.local, source=stream.source, base=stream.base)
    digest = RecordedBase.of(stream.base).digest

    def applied(target: int, at: Places = places, base_digest: str | None = digest) -> bool:
        return is_applied(at, target, base_digest=base_digest)

    assert not applied(0)
    pull(stream.local, stream.source, 0, base_dir=stream.base)
    assert [applied(target) for target in (0, 1)] == [True, False]
    pull(stream.local, stream.source, 1, base_dir=stream.base)
    assert [applied(target) for target in (0, 1, 2)] == [False, True, False]
    assert not applied(1, base_digest="another")
    assert not applied(1, Places(local=stream.local, source=stream.source, base=other.base))
    assert not applied(1, Places(local=stream.local, source=other.source, base=stream.base))
    shutil.rmtree(directory_of(stream.source, 1))
    assert applied(1), "trainers remove what was applied"
    stream.tensors.pop()
    stream.tensors.pop()
    stream.add("overwrite", share=0.5)
    assert not applied(1), "another version 1 was published"
    (stream.local / ".weight_sync" / "journal").write_bytes(b"unfinished")
    assert not applied(1)
