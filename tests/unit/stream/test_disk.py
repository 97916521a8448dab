"""The disk is given a pull's writes as they come, and ``sync`` still has the last word."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hotswap.stream import disk as disk_module
from hotswap.stream import pull
from hotswap.stream.disk import LocalDisk
from tests.unit.stream.streams import Stream, contents_of


class _Noting(LocalDisk):
    """Notes what was written to files of weights, and what the disk was told of it."""

    def __init__(self) -> None:
        self.calls = list[tuple[str, int, int]]()
        self._weights = set[int]()

    def open(self, path: Path, *, create: bool) -> int:
        fd = super().open(path, create=create)
        (self._weights.add if path.suffix == ".safetensors" else self._weights.discard)(fd)
        return fd

    def _note(self, call: str, fd: int, offset: int = 0, length: int = 0) -> None:
        if fd in self._weights:
            self.calls.append((call, offset, length))

    def write(self, fd: int, offset: int, content: memoryview) -> None:
        self._note("write", fd, offset, len(content))
        super().write(fd, offset, content)

    def begin_sync(self, fd: int, offset: int, length: int) -> None:
        self._note("begin_sync", fd, offset, length)
        super().begin_sync(fd, offset, length)

    def sync(self, fd: int) -> None:
        self._note("sync", fd)
        super().sync(fd)


def test_the_disk_begins_with_each_write_and_all_are_synced_in_the_end(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    pull(stream.local, stream.source, 0, base_dir=stream.base)
    disk = _Noting()
    pull(stream.local, stream.source, 1, base_dir=stream.base, threads=1, disk=disk)
    assert contents_of(stream.local) == stream.at(1)
    kinds = [call for call, _, _ in disk.calls]
    changes = kinds.index("sync")
    assert changes >= 2
    assert kinds == ["write", "begin_sync"] * (changes // 2) + ["sync"] * (len(kinds) - changes)
    for written, begun in zip(disk.calls[:changes:2], disk.calls[1:changes:2], strict=True):
        assert written[1:] == begun[1:]


@pytest.mark.parametrize("has_it", [True, False])
def test_what_the_disk_cannot_begin_with_is_left_to_sync(
    has_it: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_it:
        monkeypatch.setattr(disk_module, "_sync_file_range", lambda: None)
    disk = LocalDisk()
    fd = disk.open(tmp_path / "file", create=True)
    disk.write(fd, 0, memoryview(b"content"))
    disk.begin_sync(fd, 0, 7)
    disk.begin_sync(fd, -5, -1)
    disk.sync(fd)
    disk.close(fd)
    disk.begin_sync(fd, 0, 7)
    assert (tmp_path / "file").read_bytes() == b"content"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fsync(fd)
