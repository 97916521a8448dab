"""Threads that let others go first."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from hotswap.niceness import run_when_idle

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="a policy for each thread is Linux's"
)


def here_and_below() -> tuple[int, int]:
    """The policy of this thread, and of one that it starts."""
    with ThreadPoolExecutor(1) as below:
        return os.sched_getscheduler(0), below.submit(os.sched_getscheduler, 0).result()


def test_a_thread_and_those_it_starts_run_when_idle_and_no_others() -> None:
    before = os.sched_getscheduler(0)
    with ThreadPoolExecutor(1, initializer=run_when_idle) as pool:
        assert pool.submit(here_and_below).result() == (os.SCHED_IDLE, os.SCHED_IDLE)
    assert here_and_below() == (before, before)


def test_where_that_is_forbidden_it_is_nicer(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(pid: int, policy: int, param: os.sched_param) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    before = os.nice(0)
    with ThreadPoolExecutor(1, initializer=run_when_idle) as pool:
        assert pool.submit(os.nice, 0).result() == min(19, before + 10)
    assert os.nice(0) == before
