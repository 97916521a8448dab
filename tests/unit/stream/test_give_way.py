"""Beside serving the threads of a pull are nicer than the rest of the process."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from hotswap.stream import Progress, pull
from tests.unit.stream.streams import Stream, contents_of


@pytest.mark.skipif(sys.platform != "linux", reason="a niceness for each thread is Linux's")
@pytest.mark.parametrize("give_way", [False, True])
def test_the_threads_that_work_are_nicer(give_way: bool, tmp_path: Path) -> None:
    stream, seen = Stream(tmp_path, "xor"), set[int]()
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def note(progress: Progress) -> None:
        if threading.current_thread().name.startswith("hotswap-pull"):
            seen.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    for version in (0, 1):
        pull(
            stream.local,
            stream.source,
            version,
            base_dir=stream.base,
            threads=2,
            progress=note,
            give_way=give_way,
        )

    assert contents_of(stream.local) == stream.at(1)
    assert seen == {min(19, before + 10) if give_way else before}
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
