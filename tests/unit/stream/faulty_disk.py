"""Disks that stop, fail or forget at any one call of a pull."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

from hotswap.stream.disk import LocalDisk


class FaultyDisk(LocalDisk):
    """Calls ``fault`` with the number of each call (from 0) before it is carried out.

    A write is then half done, as a torn one is.
    """

    def __init__(self, fault: Callable[[int], None] = lambda number: None) -> None:
        self._fault = fault
        self.calls = list[str]()

    def _step(self, call: str) -> None:
        self.calls.append(call)
        self._fault(len(self.calls) - 1)

    def make_directory(self, path: Path) -> None:
        self._step("make_directory")
        super().make_directory(path)

    def open(self, path: Path, *, create: bool) -> int:
        self._step("open")
        return super().open(path, create=create)

    def write(self, fd: int, offset: int, content: memoryview) -> None:
        half = len(content) // 2
        super().write(fd, offset, content[:half])
        self._step("write")
        super().write(fd, offset + half, content[half:])

    def sync(self, fd: int) -> None:
        self._step("sync")
        super().sync(fd)

    def rename(self, old: Path, new: Path) -> None:
        self._step("rename")
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._step("unlink")
        super().unlink(path)

    def sync_directory(self, path: Path) -> None:
        self._step("sync_directory")
        super().sync_directory(path)


def killing(at: int) -> FaultyDisk:
    """A disk that ends its process at the call ``at``, as ``kill -9`` does."""

    def fault(number: int) -> None:
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return FaultyDisk(fault)


def failing(at: int, code: int, *, times: float = 1) -> FaultyDisk:
    """A disk whose call ``at`` raises OSError ``code``, and so do the ``times - 1`` after it."""

    def fault(number: int) -> None:
        if at <= number < at + times:
            raise OSError(code, os.strerror(code))

    return FaultyDisk(fault)


class _File:
    """One file: what survives a power cut, and what was written since the last sync."""

    def __init__(self, content: bytes) -> None:
        self.durable = bytearray(content)
        self.pending = list[tuple[int, bytes]]()

    def put(self, writes: list[tuple[int, bytes]]) -> None:
        for offset, content in writes:
            self.durable.extend(bytes(max(0, offset + len(content) - len(self.durable))))
            self.durable[offset : offset + len(content)] = content


class ForgetfulDisk(LocalDisk):
    """Remembers what a power cut before each call would leave of ``directory``.

    Names are durable at once, content only once synced. ``left`` lists, for each call,
    files below ``directory`` by relative path; ``lucky`` draws what was not synced and
    reached the disk all the same.
    """

    def __init__(self, directory: Path, *, lucky: random.Random | None = None) -> None:
        self._directory = directory
        self._lucky = lucky
        self._files = {
            path: _File(path.read_bytes()) for path in directory.rglob("*") if path.is_file()
        }
        self._open = dict[int, _File]()
        self.left = list[dict[str, bytes]]()

    def _cut(self) -> None:
        left = dict[str, bytes]()
        for path, file in self._files.items():
            after = _File(bytes(file.durable))
            if self._lucky is not None:
                after.put([write for write in file.pending if self._lucky.random() < 0.5])
            left[str(path.relative_to(self._directory))] = bytes(after.durable)
        self.left.append(left)

    def make_directory(self, path: Path) -> None:
        self._cut()
        super().make_directory(path)

    def open(self, path: Path, *, create: bool) -> int:
        self._cut()
        fd = super().open(path, create=create)
        if create:
            self._files[path] = _File(b"")
        self._open[fd] = self._files[path]
        return fd

    def write(self, fd: int, offset: int, content: memoryview) -> None:
        self._cut()
        super().write(fd, offset, content)
        self._open[fd].pending.append((offset, bytes(content)))

    def sync(self, fd: int) -> None:
        self._cut()
        super().sync(fd)
        file = self._open[fd]
        file.put(file.pending)
        file.pending.clear()

    def close(self, fd: int) -> None:
        super().close(fd)
        del self._open[fd]

    def rename(self, old: Path, new: Path) -> None:
        self._cut()
        super().rename(old, new)
        self._files[new] = self._files.pop(old)

    def unlink(self, path: Path) -> None:
        self._cut()
        super().unlink(path)
        self._files.pop(path, None)

    def sync_directory(self, path: Path) -> None:
        self._cut()
        super().sync_directory(path)


def write_left(directory: Path, left: dict[str, bytes]) -> None:
    """Make ``directory`` what a power cut left."""
    for name, content in left.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
