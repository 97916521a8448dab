"""Threads that let others go first."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from hotswap.niceness import give_way

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="a niceness for each thread is Linux's"
)


def here_and_below() -> tuple[int, int]:
    """How nice this thread is, and one that it starts and that gives way too."""
    with ThreadPoolExecutor(1, initializer=give_way) as below:
        return os.nice(0), below.submit(os.nice, 0).result()


def test_a_thread_and_those_it_starts_give_way_once() -> None:
    before = os.nice(0)
    nicer = min(19, before + 10)
    with ThreadPoolExecutor(1, initializer=give_way) as pool:
        assert pool.submit(here_and_below).result() == (nicer, nicer)
    assert here_and_below() == (before, nicer)
    assert os.nice(0) == before
