"""A block in which Python may not do a single thing that it has an audit event for.

Reading a payload imports, compiles, executes, opens and calls nothing, so that it raises
no audit event at all. An audit hook cannot be taken back: there is one for the process,
and it looks at nothing outside such a block.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["WATCHED", "nothing_happens"]

WATCHED = ("pickle.find_class", "import", "exec", "compile", "open", "os.", "subprocess.",
           "socket.", "ctypes.", "shutil.", "marshal.", "code.__new__", "builtins.")  # fmt: skip

_watching: list[tuple[int, list[str]]] = []
_installed = threading.Event()
_lock = threading.Lock()


@contextmanager
def nothing_happens() -> Iterator[None]:
    """Fail when an event of ``WATCHED`` is raised on this thread, before it takes effect."""
    with _lock:
        if not _installed.is_set():
            _installed.set()
            sys.addaudithook(_hear)
    seen: list[str] = []
    entry = (threading.get_ident(), seen)
    _watching.append(entry)
    try:
        yield
    finally:
        _watching.remove(entry)
    assert seen == []


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if not _watching or not event.startswith(WATCHED):
        return
    thread = threading.get_ident()
    for watched, seen in tuple(_watching):
        if watched == thread:
            seen.append(f"{event} {arguments!r:.200}")
            raise RuntimeError(f"{event} within a block in which nothing may happen")
