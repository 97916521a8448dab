"""Which files and sockets this process opens, as Python's own audit events tell it.

An audit hook cannot be taken back, so there is one for the process, and it looks at
nothing while nobody watches. What native code opens by itself raises no event.
"""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Watch", "watching"]

_OPENING = frozenset({"open", "socket.__new__", "socket.connect", "subprocess.Popen"})
_BLOCKING = frozenset({"open", "socket.getaddrinfo"})
_OF_IMPORTS = (".py", ".pyc", ".so")

_watches: list[Watch] = []
_installed = threading.Event()
_lock = threading.Lock()


@dataclass(slots=True, kw_only=True)
class Watch:
    """``opened`` is what was opened on any thread; ``blocking`` what held up ``thread``.

    The ``fail_at``-th opening of a file, from 0 on, fails as it does in a process that has
    no descriptor left.
    """

    fail_at: int | None = None
    thread: int = field(default_factory=threading.get_ident)
    opened: list[str] = field(default_factory=list)
    blocking: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether an opening was made to fail."""
        return self.fail_at is not None and len(self.opened) > self.fail_at

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """One audit event. Raises: OSError for the opening that shall fail."""
        if event == "open" and not _is_a_file(arguments[0]):
            return
        what = f"{event} {arguments[0]!r}" if arguments else event
        if threading.get_ident() == self.thread and _blocks(event, arguments):
            self.blocking.append(what)
        if event in _OPENING:
            self.opened.append(what)
            if len(self.opened) - 1 == self.fail_at:
                raise OSError(errno.EMFILE, "Too many open files (made to fail by a test)")


@contextmanager
def watching(*, fail_at: int | None = None) -> Iterator[Watch]:
    """Watch while the block runs; its thread is the one that may not be held up."""
    _install()
    watch = Watch(fail_at=fail_at)
    _watches.append(watch)
    try:
        yield watch
    finally:
        _watches.remove(watch)


def _is_a_file(path: object) -> bool:
    # A number is a descriptor that is open already and gets a Python object.
    return not isinstance(path, int) and not str(path).endswith(_OF_IMPORTS)


def _blocks(event: str, arguments: tuple[Any, ...]) -> bool:
    if event == "socket.connect":
        timeout: Callable[[], float | None] = arguments[0].gettimeout
        return timeout() != 0.0
    return event in _BLOCKING


def _install() -> None:
    with _lock:
        if not _installed.is_set():
            _installed.set()
            sys.addaudithook(_hear)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _watches and (event in _OPENING or event in _BLOCKING):
        for watch in tuple(_watches):
            watch.note(event, arguments)
