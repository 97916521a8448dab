"""Rests of the threads of a pull."""

from __future__ import annotations

import threading

import pytest

from hotswap.pulls.pace import Pace


class Times:
    """A clock, and how long a thread has run, that move only when they are told to."""

    def __init__(self) -> None:
        self.now, self.run = 100.0, 3.0
        self.rests: list[float] = []
        self.pace = Pace(sleep=self._sleep, clock=lambda: self.now, worked=lambda: self.run)

    def piece(self, *, worked: float, waited: float) -> None:
        self.now += worked + waited
        self.run += worked
        self.pace.rest()

    def _sleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.now += seconds


@pytest.fixture
def times() -> Times:
    times = Times()
    times.pace.rest()  # nothing is known yet
    assert times.rests == []
    return times


def test_who_is_alone_never_rests(times: Times) -> None:
    for waited in (0.0, 0.001, 0.0019):
        times.piece(worked=0.01, waited=waited)
    assert times.rests == []


def test_who_has_to_wait_rests_as_long_as_it_worked(times: Times) -> None:
    times.piece(worked=0.01, waited=0.0021)
    times.piece(worked=0.004, waited=5.0)
    times.piece(worked=0.004, waited=0.0)  # the rest before is no wait
    assert times.rests == pytest.approx([0.01, 0.004])


def test_a_rest_is_bounded(times: Times) -> None:
    times.piece(worked=3.0, waited=3.0)
    assert times.rests == [0.02]


def test_each_thread_has_its_own_times(times: Times) -> None:
    times.now += 10
    thread = threading.Thread(target=times.pace.rest)
    thread.start()
    thread.join()
    assert times.rests == []
