"""Code that is not ours: how it may end, and what it may say.

Rules:

* However foreign code ends, it has failed and nothing else has: what is no ``Exception``
  (``sys.exit()``, an exception class of its own, a ``CancelledError`` that nobody sent) becomes
  one. asyncio would end its event loop at a ``SystemExit``, and take a stray
  ``CancelledError`` for a client that has left.
* A cancellation that this task was asked for passes: it is ours.
* Text of foreign objects is shown through here: reading it may raise, it may be no Unicode that
  can be sent, and it may repeat a password.
* An exception that raises when it is looked at (``isinstance`` asks for its ``__class__``, and
  ``logging`` for its ``__traceback__``) is not passed on: another one comes in its place.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar, TypeVarTuple

from hotswap.redacted import without_passwords

__all__ = [
    "class_name",
    "contained",
    "is_ours",
    "loggable",
    "on_a_thread",
    "one_line",
    "reason_of",
    "said",
    "sendable",
    "shown",
    "trace_of",
    "words_of",
]

T = TypeVar("T")
Args = TypeVarTuple("Args")

_MAX_CHARACTERS = 8192
_UNREADABLE = "(its message cannot be read)"
_ABOVE = "\nAfter the above, or because of it:\n\n"
_LOOKED_AT = (
    "__class__",
    "__traceback__",
    "__cause__",
    "__context__",
    "__suppress_context__",
    "__notes__",
)


def contained(what: str = "it") -> AbstractContextManager[None]:
    """Around a call of foreign code: a RuntimeError in the place of what is no Exception.

    A cancellation of the running task passes, and so does any ``Exception`` that can be looked
    at. ``what`` is who is called, for the message.
    """
    return _Contained(what)


class _Contained:
    """No generator with ``contextmanager``, which asks what passes through it for its class."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __repr__(self) -> str:
        return f"<_Contained {self._what}>"

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not is_ours(error) and not _passes(error):
            raise _ended(self._what, error) from _cause(error)


def on_a_thread(work: Callable[[*Args], T], *args: *Args) -> T:
    """``work(*args)``, for a thread whose result an event loop waits for.

    Nobody cancels a thread, so that whatever is no Exception becomes a RuntimeError. It has to
    be here: a future that carries a GeneratorExit closes the coroutines that wait for it, and
    none can carry a StopIteration.
    """
    try:
        return work(*args)
    except BaseException as error:
        if _passes(error) and not isinstance(error, StopIteration):
            raise
        instead, cause = _ended("it", error), _cause(error)
    raise instead from cause


def is_ours(error: BaseException) -> bool:
    """Whether ``error``, which is no Exception, is asked for from outside the foreign code:
    the cancellation of the running task, or the end of a coroutine that no task runs."""
    task = _running_task()
    # Of its type: isinstance() would run a ``__class__`` of its own.
    if issubclass(type(error), asyncio.CancelledError):
        return task is not None and task.cancelling() > 0
    return issubclass(type(error), GeneratorExit) and task is None


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
        return f"a {class_name(thing)} (which cannot be shown)"
    return _bounded(text)


def reason_of(error: BaseException) -> str:
    """The message of ``error``, or its class where it has none."""
    return words_of(error) or class_name(error)


def one_line(text: str) -> str:
    """``text`` without line ends: a reason is one line of a log."""
    return " ".join(text.split())


def said(error: BaseException) -> str:
    """Class and message of what foreign code raised, in one line."""
    message = one_line(words_of(error))
    return f"{class_name(error)}: {message}" if message else class_name(error)


def class_name(thing: object) -> str:
    """The name of the class of ``thing``, whatever its metaclass says."""
    name: str = type.__dict__["__name__"].__get__(type(thing))
    return sendable(name)


def trace_of(error: BaseException) -> str:
    """The traceback of ``error`` and of what it came of, as Python writes it: never raises.

    Without notes and the members of groups where one of them cannot be looked at.
    """
    try:
        return "".join(traceback.format_exception(error)).rstrip("\n")
    except BaseException:
        return _ABOVE.join(reversed([_bare_trace(one) for one in _chain(error)]))


def sendable(text: str) -> str:
    """``text`` as Unicode: half characters (``"\\ud800"``) become escapes."""
    return text.encode(errors="backslashreplace").decode()


def loggable(error: BaseException) -> BaseException:
    """``error``, for a log whose formatter need not be ours; where it or what it came of cannot
    be looked at, an exception that has its traceback as text."""
    try:
        traceback.format_exception(error)
    except BaseException:
        return RuntimeError(trace_of(error))
    return error


def _passes(error: BaseException) -> bool:
    """Whether it is an Exception that code of ours may look at."""
    return issubclass(type(error), Exception) and _is_quiet(error)


def _is_quiet(error: BaseException) -> bool:
    """Whether ``error`` runs nothing that raises when it is looked at."""
    try:
        for name in _LOOKED_AT:
            getattr(error, name, None)
    except BaseException:
        return False
    return True


def _ended(what: str, error: BaseException) -> RuntimeError:
    return RuntimeError(f"{what} ended with {said(error)}")


def _cause(error: BaseException) -> BaseException | None:
    """``error``, for the log; None for one that nobody may look at."""
    return error if _is_quiet(error) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """``error`` and what it came of, the last one first."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        cause = _field(one, "__cause__")
        hidden = _field(one, "__suppress_context__")
        one = _field(one, "__context__") if cause is None and not hidden else cause


def _bare_trace(error: BaseException) -> str:
    trace: TracebackType | None = _field(error, "__traceback__")
    return "".join([*traceback.format_tb(trace), said(error)])


def _field(error: BaseException, name: str) -> Any:
    """What Python has there, past any property of the class of ``error``."""
    return BaseException.__dict__[name].__get__(error)


def _bounded(text: str) -> str:
    if len(text) > _MAX_CHARACTERS:
        text = text[:_MAX_CHARACTERS] + "…"
    return without_passwords(sendable(text))


def _running_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
