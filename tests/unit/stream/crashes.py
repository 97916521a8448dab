"""The pulls that crash tests cut short, and what has to hold after each."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from hotswap.errors import UpdateRejected
from hotswap.stream import Keep, LocalDiskFailed, PullPending, StreamError, materialize, pull
from hotswap.stream.disk import Disk
from hotswap.stream.layout import INDEX
from hotswap.stream.lock import reading
from hotswap.stream.log import file_of, holding_in
from hotswap.stream.state import Reserved, unfinished
from tests.markdown_blocks import ROOT
from tests.unit.stream.faulty_disk import FaultyDisk, ForgetfulDisk, failing, write_left
from tests.unit.stream.streams import Stream, contents_of, held_contents, publish

_Setup = Callable[[Stream], int]


def _xor(stream: Stream) -> int:
    stream.add("xor")
    pull_now(stream, 0)
    return 1


def _overwrite(stream: Stream) -> int:
    stream.add("overwrite", share=0.6)
    pull_now(stream, 0)
    return 1


def _gap(stream: Stream) -> int:
    stream.add("gap")
    pull_now(stream, 0)
    return 1


def _fold(stream: Stream) -> int:
    for encoding in ("xor", "overwrite", "gap"):
        stream.add(encoding)
    pull_now(stream, 0)
    return 3


def _seed(stream: Stream) -> int:
    stream.add("xor")
    return 1


def _reseed(stream: Stream) -> int:
    for encoding in ("xor", "full"):
        stream.add(encoding)
    pull_now(stream, 2)
    return 1


def _full(stream: Stream) -> int:
    for encoding in ("xor", "full", "overwrite"):
        stream.add(encoding)
    pull_now(stream, 1)
    return 3


def _aggregate(stream: Stream) -> int:
    for encoding in ("xor", "gap", "overwrite"):
        stream.add(encoding)
    add_aggregate(stream, 2)
    return 3


def _recovery(stream: Stream) -> int:
    """An earlier pull could not write any more once its journal was durable."""
    target = _fold(stream)

    def fault(number: int) -> None:
        if "rename" in disk.calls[:number]:
            raise OSError(errno.EIO, "Input/output error")

    disk = FaultyDisk(fault)
    with pytest.raises(LocalDiskFailed, match="the next pull finishes it"):
        pull_now(stream, target, disk=disk)
    assert Reserved(stream.local).journal.exists()
    return target


def _damaged(stream: Stream) -> int:
    """A byte of the copy changed since the last pull.

    It is in the tensor that is read last, so that the calls before are always the same.
    """
    target = _fold(stream)
    path = stream.local / "model-00001-of-00002.safetensors"
    content = path.read_bytes()
    at = 8 + int.from_bytes(content[:8], "little")
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    return target


def _log_begun(stream: Stream) -> int:
    """No log yet, but what a pull left that was killed before there was one."""
    for encoding in ("xor", "overwrite", "gap"):
        stream.add(encoding)
    pull_now(stream, 0)
    unfinished(Reserved(stream.local).log_marker).write_text("{")
    return 3


def _log(stream: Stream) -> int:
    """A log, and the file of a version that it does not have."""
    for encoding in ("xor", "gap", "overwrite"):
        stream.add(encoding)
    pull_now(stream, 0)
    pull_now(stream, 1, keep=Keep.LOG)
    (Reserved(stream.local).log / file_of(2)).write_text("half a version")
    return 3


def _folded(stream: Stream) -> int:
    """A log that a pull into the files finds there."""
    target = _log(stream)
    pull_now(stream, 2, keep=Keep.LOG)
    return target


def _compacted(stream: Stream) -> int:
    """A log that is written into the files with no pull, as it is in the background."""
    _log(stream)
    pull_now(stream, 2, keep=Keep.LOG)
    return 2


def _back(stream: Stream) -> int:
    """Back to before the log: the state will be, to the bit, the one that the log is on."""
    for encoding in ("xor", "gap"):
        stream.add(encoding)
    pull_now(stream, 1)
    pull_now(stream, 2, keep=Keep.LOG)
    return 1


def _copies(stream: Stream) -> int:
    """The first pull with a second copy: its files are new ones."""
    stream.add("xor")
    pull_now(stream, 0)
    return 1


def _spare(stream: Stream) -> int:
    """There are spares, as after every pull but the first one."""
    stream.add("xor")
    stream.add("gap", share=0.6)
    pull_now(stream, 0)
    pull_now(stream, 1, keep=Keep.COPIES)
    return 2


def _spare_fold(stream: Stream) -> int:
    """Spares that a killed pull had begun to write, and that somebody cut short."""
    for encoding in ("xor", "overwrite", "gap", "xor"):
        stream.add(encoding)
    pull_now(stream, 0)
    pull_now(stream, 1, keep=Keep.COPIES)
    paths = Reserved(stream.local)
    first, second = sorted(paths.spare.iterdir())
    first.rename(paths.incoming / first.name)
    (paths.incoming / "of another layout.safetensors").write_bytes(b"left")
    os.truncate(second, second.stat().st_size // 2)
    return 4


def _spare_folded(stream: Stream) -> int:
    """A log that a pull with a second copy finds there."""
    target = _log(stream)
    pull_now(stream, 2, keep=Keep.LOG)
    return target


def _spare_reseed(stream: Stream) -> int:
    """Back to an earlier version: files of a second copy are there, and of no use."""
    for encoding in ("xor", "gap", "overwrite"):
        stream.add(encoding)
    pull_now(stream, 2, keep=Keep.COPIES)
    pull_now(stream, 3, keep=Keep.COPIES)
    assert list(Reserved(stream.local).spare.iterdir())
    return 1


def _spare_recovery(stream: Stream) -> int:
    """An earlier pull could not write any more once one of its files had changed places."""
    target = _spare(stream)

    def fault(number: int) -> None:
        if disk.calls[:number].count("rename") > renames:
            raise OSError(errno.EIO, "Input/output error")

    renames = 3
    disk = FaultyDisk(fault)
    with pytest.raises(LocalDiskFailed, match="the next pull finishes it"):
        pull_now(stream, target, disk=disk, keep=Keep.COPIES)
    assert Reserved(stream.local).journal.exists()
    return target


def _back_in_place(stream: Stream) -> int:
    """A pull without a second copy, where there is one."""
    for encoding in ("xor", "gap"):
        stream.add(encoding)
    pull_now(stream, 0)
    pull_now(stream, 1, keep=Keep.COPIES)
    return 2


SCENARIOS: Mapping[str, _Setup] = {
    "xor": _xor,
    "overwrite": _overwrite,
    "gap": _gap,
    "fold": _fold,
    "seed": _seed,
    "reseed": _reseed,
    "full": _full,
    "aggregate": _aggregate,
    "recovery": _recovery,
    "damaged": _damaged,
    "log_begun": _log_begun,
    "log": _log,
    "folded": _folded,
    "back": _back,
    "copies": _copies,
    "spare": _spare,
    "spare_fold": _spare_fold,
    "spare_folded": _spare_folded,
    "spare_reseed": _spare_reseed,
    "spare_recovery": _spare_recovery,
    "back_in_place": _back_in_place,
    "compacted": _compacted,
}
_LOGGED = ("log_begun", "log")
_COPYING = ("copies", "spare", "spare_fold", "spare_folded", "spare_reseed", "spare_recovery")
COMPACTED = "compacted"


def pull_now(
    stream: Stream, target: int, *, disk: Disk | None = None, keep: Keep = Keep.FILES
) -> None:
    """Pull with one thread, so that calls come in the same order each time."""
    pull(
        stream.local,
        stream.source,
        target,
        base_dir=stream.base,
        threads=1,
        disk=disk,
        keep=keep,
    )


def add_aggregate(stream: Stream, version: int, *, stamp: int | None = None) -> Path:
    """Publish ``aggregate/``, from the base to ``version``, stamped."""
    directory = stream.source / "aggregate"
    shutil.rmtree(directory, ignore_errors=True)
    made = publish(
        stream.source / "made", version, stream.tensors[0], stream.tensors[version], files=2
    )
    made.rename(directory)
    (stream.source / "made").rmdir()
    for file in directory.glob("*.safetensors"):
        content = file.read_bytes()
        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + length])["__metadata__"]
        blobs = {name: np.asarray(v) for name, v in safetensors.numpy.load(content).items()}
        metadata["version"] = f"{version if stamp is None else stamp:06d}"
        file.write_bytes(safetensors.numpy.save(blobs, metadata=metadata))
    index = json.loads((directory / INDEX).read_text())
    index["metadata"]["base_version"] = "000000"
    (directory / INDEX).write_text(json.dumps(index))
    return directory


def whole_of(directory: Path) -> dict[str, bytes] | None:
    """The bytes of every tensor that is held; None where no checkpoint can be loaded."""
    try:
        return held_contents(directory)
    except UpdateRejected:
        return None


class Scenario:
    """A stream set up as ``name`` says, and a pull of ``target`` that can be cut short."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.keep = Keep.LOG if name in _LOGGED else Keep.FILES
        if name in _COPYING:
            self.keep = Keep.COPIES
        self.root = root
        self.stream = Stream(root)
        self.target = SCENARIOS[name](self.stream)
        self.local = self.stream.local
        self.before = root / "before"
        self.local.mkdir(exist_ok=True)
        shutil.copytree(self.local, self.before)
        self.held = whole_of(self.before)
        counting = FaultyDisk()
        self.pull(counting)
        held = holding_in(self.local)
        assert held is not None
        assert (held.log is not None) == (name in _LOGGED)
        self.calls = tuple(counting.calls)

    def pull(self, disk: Disk | None = None) -> None:
        """Pull the target in the scenario's way."""
        if self.name == COMPACTED:
            materialize(self.local, threads=1, disk=disk)
            return
        pull_now(self.stream, self.target, disk=disk, keep=self.keep)

    def rewind(self) -> None:
        """Put the local checkpoint back to what it was before the pull."""
        shutil.rmtree(self.local)
        shutil.copytree(self.before, self.local)

    def check_next_pull(self) -> None:
        """Who reads gets one version or none; then the next pull gives the target."""
        try:
            with reading(self.local, timeout_s=0):
                assert whole_of(self.local) in (self.held, self.stream.at(self.target))
                self._check_files()
        except PullPending:
            assert Reserved(self.local).is_pending
        self.pull()
        self.check_bytes(self.target)

    def check_bytes(self, version: int) -> None:
        """The local checkpoint holds ``version``, byte for byte, and nothing unfinished."""
        assert held_contents(self.local) == self.stream.at(version)
        self._check_files()
        assert not Reserved(self.local).journal.exists()
        assert list(Reserved(self.local).home.glob("*.tmp")) == []

    def _check_files(self) -> None:
        """Who knows of no log finds the version that the state says."""
        held = holding_in(self.local)
        if held is None or self.name == "damaged":
            return
        assert contents_of(self.local) == self.stream.at(held.plain.number)
        logged = (*_LOGGED, "folded", "back", "spare_folded", COMPACTED)
        assert held.log is None or self.name in logged

    def fail(self, at: int, code: int, *, times: float = 1) -> None:
        """Let one call fail (or it and all after it) and check what is left."""
        self.rewind()
        try:
            self.pull(failing(at, code, times=times))
        except StreamError as error:
            self._check_left(error.local_version)
        self.check_next_pull()

    def cut(self, points: Iterable[int], *, lucky: int | None = None) -> int:
        """Take the power away before each of the calls ``points``; how many there were."""
        self.rewind()
        chance = None if lucky is None else random.Random(lucky)
        disk = ForgetfulDisk(self.local, lucky=chance)
        self.pull(disk)
        assert len(disk.left) == len(self.calls)
        chosen = [disk.left[point] for point in points]
        for left in chosen:
            shutil.rmtree(self.local)
            self.local.mkdir()
            write_left(self.local, left)
            self.check_next_pull()
        return len(chosen)

    def kill(self, points: Sequence[int]) -> int:
        """End the pulling process at each of the calls ``points``; how many there were."""
        copies = [self.root / f"killed-{point}" for point in points]
        for copy in copies:
            shutil.copytree(self.before, copy)
        spec = {
            "source": str(self.stream.source),
            "base": str(self.stream.base),
            "target": self.target,
            "keep": None if self.name == COMPACTED else self.keep,
            "pulls": [[str(copy), point] for copy, point in zip(copies, points, strict=True)],
        }
        command = [sys.executable, "-m", "tests.unit.stream.killed_pulls", json.dumps(spec)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == [-9] * len(points)
        for copy in copies:
            shutil.rmtree(self.local)
            copy.rename(self.local)
            self.check_next_pull()
        return len(copies)

    def _check_left(self, version: int | None) -> None:
        if version is not None and self.name == "damaged" and version != self.target:
            # The pull ended before it looked at the tensor: the copy is what it was.
            assert contents_of(self.local) == contents_of(self.before)
        elif version is not None:
            self.check_whole(version)
        else:
            # Nothing whole was there before, or the journal says how it goes on.
            assert (
                self.name in ("seed", "aggregate", "damaged")
                or Reserved(self.local).journal.exists()
            )

    def check_whole(self, version: int) -> None:
        """The directory can be loaded as ``version``."""
        assert held_contents(self.local) == self.stream.at(version)


ERRORS = (errno.ENOSPC, errno.EIO)
