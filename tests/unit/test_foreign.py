"""How foreign code may end, and what it may say."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable

import anyio
import pytest

from hotswap.foreign import (
    class_name,
    contained,
    is_ours,
    on_a_thread,
    one_line,
    reason_of,
    said,
    sendable,
    shown,
    trace_of,
    words_of,
)
from hotswap.testing.endings import ENDINGS, StopEverything


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit(4)


class Unseen:
    def __repr__(self) -> str:
        raise StopEverything


class Odd(str):
    """A text that is more than one."""

    __slots__ = ()

    def encode(self, *_arguments: object, **_options: object) -> bytes:
        raise AssertionError("of its own")


class Says:
    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


@pytest.mark.parametrize("ending", ENDINGS)
async def test_whatever_foreign_code_ends_with_is_an_exception(ending: str) -> None:
    says = f"a hook ended with {ending}"
    with pytest.raises(RuntimeError, match=says) as caught, contained("a hook"):
        raise ENDINGS[ending]()
    assert type(caught.value.__cause__).__name__ == ending


async def test_an_exception_stays_what_it_is() -> None:
    with pytest.raises(KeyError, match="gone"), contained():
        raise KeyError("gone")


async def _by_task(work: Callable[[], Awaitable[object]]) -> str:
    async def run() -> None:
        await work()

    task = asyncio.get_running_loop().create_task(run())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return "cancelled" if task.cancelled() else repr(task.exception())


async def _by_scope(work: Callable[[], Awaitable[object]]) -> str:
    with anyio.CancelScope() as scope:
        asyncio.get_running_loop().call_soon(scope.cancel)
        await work()
        return "went on"
    return "cancelled"


async def _by_time(work: Callable[[], Awaitable[object]]) -> str:
    with anyio.move_on_after(0):
        await work()
        return "went on"
    return "cancelled"


async def _by_wait_for(work: Callable[[], Awaitable[object]]) -> str:
    try:
        await asyncio.wait_for(work(), 0.001)
    except TimeoutError:
        return "cancelled"
    return "went on"


@pytest.mark.parametrize("way", [_by_task, _by_scope, _by_time, _by_wait_for])
async def test_a_cancellation_of_ours_passes(
    way: Callable[[Callable[[], Awaitable[object]]], Awaitable[str]],
) -> None:
    async def work() -> None:
        with contained():
            await asyncio.Event().wait()

    assert await way(work) == "cancelled"


async def test_what_awaits_a_cancelled_task_of_its_own_has_failed() -> None:
    async def work() -> None:
        inner = asyncio.get_running_loop().create_task(asyncio.sleep(3600))
        inner.cancel()
        await inner

    with pytest.raises(RuntimeError, match="it ended with CancelledError"), contained():
        await work()


def test_a_coroutine_that_is_closed_without_a_task_just_ends() -> None:
    async def work() -> None:
        with contained():
            await asyncio.Future[None](loop=loop)

    loop = asyncio.new_event_loop()
    try:
        coroutine = work()
        coroutine.send(None)
        coroutine.close()
    finally:
        loop.close()
    assert is_ours(GeneratorExit())
    assert not is_ours(SystemExit())
    assert not is_ours(asyncio.CancelledError())


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        ("plain", "plain"),
        (ValueError("a\nb"), "a\nb"),
        ("half \ud800 of one", "half \\ud800 of one"),
        (Mute(), "(its message cannot be read)"),
        (Says("x" * 9000), "x" * 8192 + "…"),
        (Says(Odd("odd")), "odd"),
        ("from s3://me:pw@b/k?sig=1", "from s3://***@b/k?***"),
        (7, "7"),
    ],
)
def test_words_can_always_be_sent(thing: object, words: str) -> None:
    found = words_of(thing)
    assert found == words
    assert type(found) is str
    assert found.encode().decode() == found


def test_what_it_was_in_one_line() -> None:
    assert said(ValueError("a\n\tb")) == "ValueError: a b"
    assert said(ValueError()) == "ValueError"
    assert said(Mute()) == "Mute: (its message cannot be read)"
    assert said(OSError("\udcff")) == "OSError: \\udcff"
    assert (reason_of(ValueError()), reason_of(ValueError("x"))) == ("ValueError", "x")
    assert one_line(" a\n b ") == "a b"


def test_things_are_shown_whatever_they_do() -> None:
    assert shown("\ud800") == "'\\ud800'"
    assert shown(Unseen()) == "a Unseen (which cannot be shown)"
    assert sendable("s3://me:pw@b \udcff") == "s3://me:pw@b \\udcff"


def read(self: object) -> object:
    raise SystemExit(5)


def raising(attribute: str) -> Exception:
    """One that raises when ``attribute`` of it is read."""

    kind: type[Exception] = type("Hostile", (ValueError,), {attribute: property(read)})
    return kind("mine")


HOSTILE = ("__class__", "__traceback__", "__cause__", "__context__", "__notes__")


@pytest.mark.parametrize("attribute", HOSTILE)
async def test_what_cannot_be_looked_at_is_not_passed_on(attribute: str) -> None:
    def fail() -> None:
        raise raising(attribute)

    says = "a hook ended with Hostile: mine"
    with pytest.raises(RuntimeError, match=says) as caught, contained("a hook"):
        fail()
    assert caught.value.__cause__ is None
    with pytest.raises(RuntimeError, match="it ended with Hostile: mine") as caught:
        on_a_thread(fail)
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)


@pytest.mark.parametrize("attribute", HOSTILE)
def test_its_traceback_can_be_shown_all_the_same(attribute: str) -> None:
    def fail_deep_down() -> None:
        try:
            raise KeyError("first")
        except KeyError as first:
            raise raising(attribute) from first

    try:
        try:
            fail_deep_down()
        except ValueError:
            raise LookupError("last") from None
    except LookupError as error:
        last = error
    last.__suppress_context__ = False
    text = trace_of(last)
    assert text.index("first") < text.index("Hostile: mine") < text.index("LookupError: last")
    assert "in fail_deep_down" in text


def test_a_traceback_is_as_python_writes_it() -> None:
    group = ExceptionGroup("both", [ValueError("a"), KeyError("b")])
    group.add_note("of the two")
    with pytest.raises(ExceptionGroup) as caught:
        raise group
    assert trace_of(caught.value) + "\n" == "".join(traceback.format_exception(group))
    assert "in test_a_traceback_is_as_python_writes_it" in trace_of(group)


def test_the_name_of_a_class_is_pythons() -> None:
    odd = type("OddName", (type,), {"__name__": property(read)})
    assert said(odd("Odd", (ValueError,), {})("x")) == "Odd: x"
    assert class_name(7) == "int"


def test_a_stop_iteration_leaves_no_thread() -> None:
    """No future can carry it."""
    with pytest.raises(RuntimeError, match="it ended with StopIteration"):
        on_a_thread(next, iter(()))
