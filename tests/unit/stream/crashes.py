"""The pulls that crash tests cut short, and what has to hold after each."""

from __future__ import annotations

import errno
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from hotswap.errors import UpdateRejected
from hotswap.stream import Keep, LocalDamaged, PullPending, StreamError, materialize
from hotswap.stream.disk import Disk
from hotswap.stream.lock import reading
from hotswap.stream.log import holding_in
from hotswap.stream.state import Reserved
from tests.markdown_blocks import ROOT
from tests.unit.stream.crash_setups import (
    COMPACTED,
    COPYING,
    DENSE,
    LOGGED,
    SCENARIOS,
    length_counts_from,
    pull_now,
)
from tests.unit.stream.faulty_disk import FaultyDisk, ForgetfulDisk, failing, write_left
from tests.unit.stream.streams import Stream, contents_of, held_contents


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
        self.keep = Keep.LOG if name in LOGGED else Keep.FILES
        if name in COPYING:
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
        assert (held.log is not None) == (name in LOGGED)
        self.calls = tuple(counting.calls)

    def pull(self, disk: Disk | None = None) -> None:
        """Pull the target in the scenario's way."""
        if self.name == COMPACTED:
            materialize(self.local, threads=1, disk=disk)
            return
        with length_counts_from(1 if self.name == DENSE else 2**30):
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
        except LocalDamaged:
            # A pull saw it, wrote that down, and ended before the new copy was there.
            assert self.name == "damaged"
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
        logged = (*LOGGED, "folded", "back", "spare_folded", COMPACTED)
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
            "long_journal_bytes": 1 if self.name == DENSE else 2**30,
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
