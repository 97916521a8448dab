"""Servers that are killed at many points of a pull, disks that refuse, and one that is small."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hotswap.stream import Keep
from hotswap.testing.checkpoints import make_checkpoint
from tests.process import pull_faults
from tests.process.killed_servers import Cut, Rig
from tests.unit.stream.streams import contents_of

pytestmark = pytest.mark.long

SHARES = (0.05, 0.4, 0.6, 0.97)
CODES = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT)
WAYS = ((None, 1), (0, 1), (0, 3), (3, 1))
"""A seed, one version, three of all encodings, a copy that is made anew."""


@pytest.fixture(scope="module")
def a(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("a") / "a", seed=1)


@pytest.fixture(scope="module")
def b(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("b") / "b", seed=2)


@pytest.fixture
def rig(tmp_path: Path, a: Path, b: Path) -> Rig:
    return Rig(tmp_path, a, b)


@pytest.fixture
def copying(tmp_path: Path, a: Path, b: Path) -> Rig:
    return Rig(tmp_path, a, b, keep=Keep.COPIES)


def test_killed_at_many_points_of_a_second_copy(copying: Rig) -> None:
    modes = copying.kill(
        [Cut(start=start, target=3, share=share) for start, share in ((0, 0.3), (2, 0.7), (0, 0.8))]
    )
    assert len(modes) == 3


def test_a_disk_that_refuses_a_second_copy(copying: Rig) -> None:
    with copying.server() as process, process.client(timeout_s=60) as http:
        for number, code in enumerate((errno.EIO, errno.EROFS)):
            copying.refuse(http, Cut(start=number, target=3, share=0.4), code)


def test_killed_at_many_points(rig: Rig, record_property: Callable[[str, object], None]) -> None:
    cuts = [
        Cut(start=start, target=target, share=SHARES[number % len(SHARES)])
        for number, (start, target) in enumerate((*WAYS, WAYS[2]))
    ]
    modes = rig.kill(cuts)
    record_property("modes", modes)
    assert len(modes) == len(cuts)
    assert {"recovered", "seed"} <= set(modes)


def test_a_disk_that_refuses_at_many_points(rig: Rig) -> None:
    with rig.server() as process, process.client(timeout_s=60) as http:
        for start, target in WAYS[1:]:
            for number, share in enumerate(SHARES):
                cut = Cut(start=start, target=target, share=share)
                rig.refuse(http, cut, CODES[number % len(CODES)])


@pytest.mark.parametrize("hook", pull_faults.HANGING)
def test_a_server_ends_while_a_hook_hangs(rig: Rig, hook: str) -> None:
    pipe = pull_faults.called(rig.plan)
    os.mkfifo(pipe)
    with rig.server(hook) as process, process.client(timeout_s=60) as http:
        with ThreadPoolExecutor(1) as pool:
            asks = pool.submit(rig.pull, http, 1)
            assert pipe.read_text() == "called"
            assert http.get("/health").status_code == 200
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait() == 0
            asks.exception()
        assert "Traceback" not in process.log, process.log
    assert not rig.local.joinpath("model.safetensors").exists()


@pytest.fixture
def small_disk(rig: Rig) -> Iterator[Path]:
    """A file system with room for the copy and not for a second one."""
    place = rig.local.parent / "small"
    place.mkdir()
    size = sum(path.stat().st_size for path in rig.base.iterdir())
    mount = ("mount", "-t", "tmpfs", "-o", f"size={int(size * 1.5)}", "tmpfs", str(place))
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        # Only root mounts. The same errors, given by calls that are made to fail, run everywhere.
        pytest.skip("this process may not mount a tmpfs; calls to the disk are failed instead")
    try:
        yield place / "local"
    finally:
        subprocess.run(("umount", str(place)), check=True)


def test_a_disk_without_room(rig: Rig, small_disk: Path) -> None:
    """A second copy does not fit, what is there stays, and room is all that it needs."""
    with rig.server() as process, process.client(timeout_s=60) as http:
        assert rig.pull(http, 1, local=small_disk).json()["mode"] == "seed"
        filler = small_disk.parent / "filler"
        filler.write_bytes(bytes(2**16))
        for target in (0, 2):
            reply = rig.pull(http, target, local=small_disk)
            said = reply.json()
            assert (reply.status_code, said["error"]["code"]) == (500, "disk_full"), said
            assert said["local_version"] == 1
            assert contents_of(small_disk) == contents_of(rig.checkpoints[1])
        grown = ("mount", "-o", "remount,size=100m", str(small_disk.parent))
        subprocess.run(grown, check=True)
        for target in (2, 0):
            assert rig.pull(http, target, local=small_disk).json()["success"] is True
            assert contents_of(small_disk) == contents_of(rig.checkpoints[target])
