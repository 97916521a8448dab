"""Code that is not ours: how it may end, and what it may say.

Rules:

* However foreign code ends, it has failed and nothing else has: what is no ``Exception``
  (``sys.exit()``, an exception class of its own, a ``CancelledError`` that nobody sent) becomes
  one. asyncio would end its event loop at a ``SystemExit``, and take a stray
  ``CancelledError`` for a client that has left.
* A cancellation that this task was asked for passes: it is ours.
* Text of foreign objects is shown through here: reading it may raise, it may be no Unicode that
  can be sent, and it may repeat a password.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, TypeVarTuple

from hotswap.redacted import without_passwords

__all__ = [
    "contained",
    "is_ours",
    "on_a_thread",
    "one_line",
    "reason_of",
    "said",
    "sendable",
    "shown",
    "words_of",
]

T = TypeVar("T")
Args = TypeVarTuple("Args")

_MAX_CHARACTERS = 8192
_UNREADABLE = "(its message cannot be read)"


@contextmanager
def contained(what: str = "it") -> Iterator[None]:
    """Around a call of foreign code: a RuntimeError in the place of what is no Exception.

    A cancellation of the running task passes, and so does any ``Exception``. ``what`` is who
    is called, for the message.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if is_ours(error):
            raise
        raise RuntimeError(f"{what} ended with {said(error)}") from error


def on_a_thread(work: Callable[[*Args], T], *args: *Args) -> T:
    """``work(*args)``, for a thread whose result an event loop waits for.

    Nobody cancels a thread, so that whatever is no Exception becomes a RuntimeError. It has to
    be here: a future that carries a GeneratorExit closes the coroutines that wait for it.
    """
    try:
        return work(*args)
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"it ended with {said(error)}") from error


def is_ours(error: BaseException) -> bool:
    """Whether ``error``, which is no Exception, is asked for from outside the foreign code:
    the cancellation of the running task, or the end of a coroutine that no task runs."""
    task = _running_task()
    if isinstance(error, asyncio.CancelledError):
        return task is not None and task.cancelling() > 0
    return isinstance(error, GeneratorExit) and task is None


def words_of(thing: object) -> str:
    """What ``thing`` says as text that can be sent, whatever it is: never raises.

    At most 8192 characters; half characters become escapes, and secrets of URLs are hidden.
    """
    try:
        # A text of a class of its own may do much when it is used.
        text = "".join((str(thing),))
    except BaseException:
        return _UNREADABLE
    return _bounded(text)


def shown(thing: object) -> str:
    """``repr(thing)``, as ``words_of``; its class where that cannot be read."""
    try:
        text = "".join((repr(thing),))
    except BaseException:
        return f"a {type(thing).__name__} (which cannot be shown)"
    return _bounded(text)


def reason_of(error: BaseException) -> str:
    """The message of ``error``, or its class where it has none."""
    return words_of(error) or type(error).__name__


def one_line(text: str) -> str:
    """``text`` without line ends: a reason is one line of a log."""
    return " ".join(text.split())


def said(error: BaseException) -> str:
    """Class and message of what foreign code raised, in one line."""
    message = one_line(words_of(error))
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def sendable(text: str) -> str:
    """``text`` as Unicode: half characters (``"\\ud800"``) become escapes."""
    return text.encode(errors="backslashreplace").decode()


def _bounded(text: str) -> str:
    if len(text) > _MAX_CHARACTERS:
        text = text[:_MAX_CHARACTERS] + "…"
    return without_passwords(sendable(text))


def _running_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
