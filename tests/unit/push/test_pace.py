"""A body that trickles in ends; one that is only slow does not."""

from __future__ import annotations

from hotswap.push.pace import LEAST_BYTES, Pace


def test_silence_is_told_from_a_trickle() -> None:
    silent, trickling = Pace(stall_s=60.0), Pace(stall_s=60.0)
    for _ in range(59):
        silent.waited(1.0, came_bytes=0)
        trickling.waited(1.0, came_bytes=100)
        assert (silent.fault, trickling.fault) == (None, None)
    silent.waited(1.0, came_bytes=0)
    trickling.waited(1.0, came_bytes=100)
    assert silent.fault == "the sender has sent nothing for 60 s; send the whole body"
    assert trickling.fault is not None
    assert f"has sent 6000 bytes in the 60 s that were waited for it, wanted {LEAST_BYTES}" in (
        trickling.fault
    )
    assert repr(trickling) == "<Pace 6000 bytes in 60 s>"


def test_a_slow_sender_goes_on_for_as_long_as_it_likes() -> None:
    pace = Pace(stall_s=60.0)
    for _ in range(1000):
        pace.waited(1.0, came_bytes=LEAST_BYTES // 59)
        assert pace.fault is None


def test_pauses_add_up_as_long_as_little_comes_between_them() -> None:
    pace = Pace(stall_s=60.0)
    pace.waited(59.0, came_bytes=0)
    pace.waited(0.5, came_bytes=1)
    assert pace.fault is None
    pace.waited(59.0, came_bytes=1)
    assert pace.fault is not None


def test_what_comes_while_nobody_waits_counts_and_the_time_does_not() -> None:
    pace = Pace(stall_s=60.0)
    for _ in range(1000):
        pace.waited(59.0, came_bytes=1)
        pace.came(LEAST_BYTES)
        assert pace.fault is None
