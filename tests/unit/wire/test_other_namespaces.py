"""Senders that this process cannot see: their segments are theirs."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotswap.wire import owners
from hotswap.wire.owners import Owner, is_held, is_mapped
from hotswap.wire.references import HEADER_BYTES, give_back

UNSEEN = "torch_1_17_0"
IN_ANOTHER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]

LOOKS = """
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("owners", sys.argv[1])
owners = sys.modules["owners"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(owners)
path = pathlib.Path(sys.argv[2])
print(owners.is_mapped(path), owners.is_held(path))
"""


def a_segment(directory: Path) -> Path:
    path = directory / UNSEEN
    path.write_bytes((3).to_bytes(4, "little").ljust(HEADER_BYTES + 8, b"\0"))
    return path


@pytest.fixture
def in_memory() -> Path:
    """Where torch's segments lie; others do not show who has a file."""
    return Path("/dev/shm")


def test_whoever_has_it_open_or_mapped_for_writing_holds_it(in_memory: Path) -> None:
    path = in_memory / f"hotswap-test-{os.getpid()}"
    assert not is_held(path)
    path.write_bytes(bytes(8))
    try:
        assert not is_held(path)
        with path.open("r+b") as file:
            assert is_held(path)
            mapped = mmap.mmap(file.fileno(), 0)
        assert is_held(path)
        mapped.close()
        with path.open("rb"):
            assert not is_held(path)
    finally:
        path.unlink()


def test_a_process_that_sees_no_other_sees_that_a_segment_is_held(in_memory: Path) -> None:
    if subprocess.run([*IN_ANOTHER, "true"], capture_output=True, check=False).returncode:
        # A container may be denied unshare; what one namespace sees is tested above.
        pytest.skip("no PID namespace can be made here")
    path = in_memory / f"hotswap-test-{os.getpid()}"
    path.write_bytes(bytes(8))
    asks = [*IN_ANOTHER, sys.executable, "-c", LOOKS, owners.__file__, str(path)]
    try:
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
            assert is_mapped(path)
            assert subprocess.check_output(asks, text=True).split() == ["False", "True"]
        assert subprocess.check_output(asks, text=True).split() == ["False", "False"]
    finally:
        path.unlink()


def test_a_segment_of_an_owner_that_nobody_sees_stays_while_it_is_held(in_memory: Path) -> None:
    folder = in_memory / f"hotswap-test-{os.getpid()}-segments"
    folder.mkdir()
    path, unseen = a_segment(folder), Owner(pid=2**30, started=None)
    try:
        assert not unseen.lives
        with path.open("r+b"):
            assert not is_mapped(path)
            give_back({UNSEEN: 1}, owners={UNSEEN: unseen}, directory=folder)
            assert int.from_bytes(path.read_bytes()[:4], "little") == 2
        give_back({UNSEEN: 1}, owners={UNSEEN: unseen}, directory=folder)
        assert not path.exists()
    finally:
        path.unlink(missing_ok=True)
        folder.rmdir()
