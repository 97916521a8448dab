"""Reads of an object store: several ranges at a time, and never more than are allowed."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import hotswap.stream.objects as objects_module
from hotswap.stream import SourceUnusable, StreamError, pull
from hotswap.stream.layout import directory_of
from hotswap.stream.objects import ObjectFolder, Objects
from hotswap.stream.source import Source
from tests.unit.stream.faulty_store import FaultyStore, objects, uploaded
from tests.unit.stream.streams import Stream

RANGE, AT_ONCE, BATCHES = 1024, 8, 3
CONTENT = bytes(range(256)) * (BATCHES * AT_ONCE * RANGE // 256)
LIMIT_S = 60.0


class Meeting:
    """Answers a read of ``CONTENT`` once ``together`` of them are under way, and counts them."""

    def __init__(self, together: int) -> None:
        self.lengths = list[int]()
        self.under_way = self.most = 0
        self._all = asyncio.Barrier(together)

    def store(self) -> Any:
        """A file system of fsspec's that asks this."""
        fs = import_module("fsspec.asyn").AsyncFileSystem(skip_instance_cache=True)
        fs._cat_file = self._read
        fs.info = lambda path, **told: {"size": len(CONTENT), "type": "file", "ETag": "one"}
        return fs

    async def _read(self, path: str, start: int, end: int, **told: Any) -> bytes:
        self.lengths.append(end - start)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            async with asyncio.timeout(LIMIT_S):
                await self._all.wait()
        except TimeoutError as error:
            # Not one that would be tried again.
            raise ValueError(f"{self.under_way} reads are under way, no more came") from error
        finally:
            self.under_way -= 1
        return CONTENT[start:end]


@pytest.mark.parametrize("threads", [1, 2])
def test_ranges_are_asked_for_together_and_no_more_of_them(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_module, "_FIRST_BYTES", 10)
    monkeypatch.setattr(objects_module, "_RANGE_BYTES", RANGE)
    monkeypatch.setattr(objects_module, "_AT_ONCE", AT_ONCE)
    meeting = Meeting(threads * AT_ONCE)
    place = Objects.at("memory://bucket/run", fs=meeting.store())

    def read(name: str) -> bytes:
        with ObjectFolder(place) as folder, folder.open_file(name) as file:
            return file.read_bytes(0, len(CONTENT))

    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(read, "ab"[:threads])) == [CONTENT] * threads
    # What is in memory beside what was asked for is bounded: so many ranges a thread.
    assert meeting.most == threads * AT_ONCE
    assert meeting.lengths == [RANGE] * (threads * BATCHES * AT_ONCE)


FILES = 4


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    """Two versions of several files each."""
    stream = Stream(tmp_path)
    for _ in range(2):
        stream.add("xor", files=FILES)
    return stream


def test_files_and_versions_are_read_together(stream: Stream) -> None:
    fs = FaultyStore()
    place = objects(fs)
    uploaded(stream.source, place)
    lengths = {name: len(content) for name, content in stream.at(0).items()}
    source = Source(place, names=lengths.keys(), allowed=None)
    chain = source.chain(2)
    meeting = threading.Barrier(FILES)

    def meet(request: str, path: str) -> None:
        if request == "read" and path.endswith(".safetensors"):
            meeting.wait(LIMIT_S)

    fs.before = meet
    found = source.deltas(chain.deltas, lengths)
    assert [deltas.keys() for deltas in found] == [lengths.keys()] * 2
    assert [{delta.version for delta in deltas.values()} for deltas in found] == [{1}, {2}]


def test_one_that_cannot_be_read_ends_the_others(stream: Stream) -> None:
    fs = FaultyStore()
    place = objects(fs)
    uploaded(stream.source, place)
    names = sorted(directory_of(place, 1).names())

    def refuse(request: str, path: str) -> None:
        if request == "read" and path.endswith(f"1/{names[0]}"):
            raise PermissionError("denied")

    fs.before = refuse
    with pytest.raises(StreamError, match="the store refuses reading it") as caught:
        pull(stream.local, place, 2, base_dir=stream.base, threads=1)
    assert isinstance(caught.value, SourceUnusable)
    assert not [one.name for one in threading.enumerate() if one.name.startswith("hotswap-read")]
