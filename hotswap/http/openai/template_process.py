"""The process that renders chat templates: started when it is needed, killed when it hangs."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path

import msgspec

__all__ = ["TemplateFailed", "TemplateProcess"]

_CHILD = Path(__file__).with_name("template_child.py")
_START_S = 60.0
_MAX_CHARACTERS = 4 * 1024 * 1024
_END_S = 2.0


class TemplateFailed(Exception):
    """A template gave no text; the message says why."""


class TemplateProcess:
    """One process, one rendering at a time; ``limit_s`` bounds each.

    It ends with its owner: when the object goes, and when this process does.
    """

    def __init__(self, *, limit_s: float = 10.0) -> None:
        self._limit_s = limit_s
        self._turn = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[[subprocess.Popen[bytes]], TemplateProcess] | None = None

    def __repr__(self) -> str:
        return f"<TemplateProcess pid={None if self._child is None else self._child.pid}>"

    def render(self, template: str, values: Mapping[str, object]) -> str:
        """The text of ``template``. Blocks; any thread. Raises: TemplateFailed."""
        asked = {"template": template, "values": values, "most_characters": _MAX_CHARACTERS}
        try:
            line = msgspec.json.encode(asked) + b"\n"
        except RecursionError:
            raise TemplateFailed("the messages lie too deep in each other") from None
        with self._turn:
            reply = self._exchange(line)
        if "text" not in reply:
            raise TemplateFailed(reply.get("error", "its process gave no answer"))
        return reply["text"]

    def close(self) -> None:
        """End the process; the next rendering starts another."""
        with self._turn:
            self._drop()

    def _exchange(self, line: bytes) -> dict[str, str]:
        try:
            child = self._running()
            _write_line(child, line)
            answer = _read_line(child, self._limit_s)
        except TimeoutError:
            self._drop(kill=True)
            raise TemplateFailed(f"it did not end within {self._limit_s:g} s") from None
        except OSError as error:
            # It has most likely run out of the memory that it may have.
            self._drop(kill=True)
            raise TemplateFailed(f"its process ended: {error}") from error
        return msgspec.json.decode(answer, type=dict[str, str])

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, "-P", str(_CHILD)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # A Ctrl-C is for the server, which ends this process in its own time.
                start_new_session=True,
            )
            self._finalizer = weakref.finalize(self, _end, self._child)
            _read_line(self._child, _START_S)
        return self._child

    def _drop(self, *, kill: bool = False) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if kill:
            child.kill()
        if self._finalizer is not None:
            self._finalizer()


def _write_line(child: subprocess.Popen[bytes], line: bytes) -> None:
    assert child.stdin is not None
    child.stdin.write(line)
    child.stdin.flush()


def _read_line(child: subprocess.Popen[bytes], limit_s: float) -> bytes:
    """One line without its end. Raises: TimeoutError, OSError when the process has ended."""
    assert child.stdout is not None
    deadline = time.monotonic() + limit_s
    descriptor = child.stdout.fileno()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    read = bytearray()
    while not read.endswith(b"\n"):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1000):
            raise TimeoutError
        piece = os.read(descriptor, 65536)
        if not piece:
            raise BrokenPipeError("no answer came from it")
        read += piece
    return bytes(read[:-1])


def _end(child: subprocess.Popen[bytes]) -> None:
    """Close what it reads, which ends it, or kill it."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.close()
    except BrokenPipeError:
        child.kill()
    child.stdout.close()
    try:
        child.wait(_END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
