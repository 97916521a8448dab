"""The ring of events: what is kept, what a reader may ask for, and what it is told."""

import anyio
import pytest

from hotswap.errors import QueueFull
from hotswap.events import EventLog, Gap, Reader


def filled(count: int, *, capacity: int = 4) -> EventLog:
    log = EventLog(capacity=capacity)
    for number in range(1, count + 1):
        log.publish("tick", {"n": number})
    return log


def numbers(log: EventLog, reader: Reader) -> list[int]:
    return [event.number for event in log.take(reader)]


def test_a_new_reader_begins_after_the_newest() -> None:
    log = filled(3)
    with log.reading(None) as reader:
        assert (reader.position, reader.gap) == (3, None)
        assert log.take(reader) == []
        log.publish("tock", {})
        (event,) = log.take(reader)
    assert (event.number, event.name, event.id) == (4, "tock", f"{log.instance}-4")


@pytest.mark.parametrize(
    ("after", "wanted", "gap"),
    [
        ("{}-4", [5, 6], None),
        ("{}-2", [3, 4, 5, 6], None),
        ("{}-1", [3, 4, 5, 6], Gap.TOO_OLD),
        ("0", [3, 4, 5, 6], Gap.TOO_OLD),
        ("{}-6", [], None),
        ("{}-7", [3, 4, 5, 6], Gap.UNKNOWN),
        ("{}-", [3, 4, 5, 6], Gap.UNKNOWN),
        ("{}-٣", [3, 4, 5, 6], Gap.UNKNOWN),
        ("{}-" + "9" * 5000, [3, 4, 5, 6], Gap.UNKNOWN),
        ("nonsense", [3, 4, 5, 6], Gap.UNKNOWN),
        ("0123456789ab-4", [3, 4, 5, 6], Gap.OTHER_RUN),
        ("4", [3, 4, 5, 6], Gap.OTHER_RUN),
    ],
)
def test_resuming_after_an_id(after: str, wanted: list[int], gap: Gap | None) -> None:
    log = filled(6)
    with log.reading(after.format(log.instance)) as reader:
        assert reader.gap is gap
        assert numbers(log, reader) == wanted


def test_everything_can_be_asked_for_without_a_gap_while_it_is_all_there() -> None:
    for count in (0, 4):
        log = filled(count)
        reader = log.place("0")
        assert (reader.gap, numbers(log, reader)) == (None, list(range(1, count + 1)))


def test_two_runs_have_different_ids() -> None:
    assert EventLog().instance != EventLog().instance


def test_a_reader_that_falls_out_of_the_ring_is_told_how_many_it_missed() -> None:
    log = filled(1)
    slow, quick = log.place(None), log.place(None)
    for number in range(2, 9):
        log.publish("tick", {"n": number})
        assert numbers(log, quick) == [number]
    assert (log.missed(slow), log.missed(quick)) == (3, 0)
    assert (log.oldest, log.last) == (5, 8)


def test_a_take_is_bounded() -> None:
    log = filled(100, capacity=100)
    reader = log.place("0")
    assert [len(log.take(reader)) for _ in range(3)] == [64, 36, 0]


def test_long_texts_are_cut_and_others_are_kept() -> None:
    log = EventLog()
    log.publish("x", {"text": "a" * 10_000, "short": "b", "number": 7})
    (event,) = log.take(log.place("0"))
    assert event.data == {"text": "a" * 512 + "…", "short": "b", "number": 7}


def test_too_many_readers_are_refused_and_places_come_free() -> None:
    log = EventLog(max_readers=1)
    with log.reading(None):
        assert log.readers == 1
        with pytest.raises(QueueFull, match="1 readers of events are connected"), log.reading(None):
            raise AssertionError("a reader past the bound")
    with log.reading(None):
        assert log.readers == 1
    assert log.readers == 0


async def test_all_who_wait_are_woken_and_a_close_ends_the_wait() -> None:
    log = EventLog()
    taken: list[list[str]] = []

    async def read() -> None:
        reader = log.place(None)
        await log.wait(reader)
        taken.append([event.name for event in log.take(reader)])
        await log.wait(reader)
        taken.append([event.name for event in log.take(reader)])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        log.publish("a", {})
        await anyio.wait_all_tasks_blocked()
        log.close()

    assert taken == [["a"], ["a"], ["shutdown"], ["shutdown"]]
    log.close()
    log.publish("late", {})
    assert (log.last, log.closed) == (2, True)
    assert repr(log) == f"<EventLog {log.instance} 2 events 0 readers>"
