"""What the commands print: text for people, or one JSON object for programs.

Rules:

* stdout has the result and nothing else; progress and errors of people's mode go to stderr. With
  ``--json`` an error is the result.
* What a server, a client or a file chose to be called begins no line, moves no cursor and has
  no key of ours in it (``hotswap.cli.terminal``); JSON has it as it is.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from hotswap.cli.codes import ExitCode, exit_code_of
from hotswap.cli.terminal import for_terminal

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "OutputLost",
    "complain",
    "console_of",
    "error_object",
    "fail",
    "print_json",
    "print_lines",
    "print_text",
    "retries_shown",
    "retries_unsaid",
    "usage_object",
    "wants_json",
    "wrong_usage",
]


class OutputLost(Exception):
    """stdout takes nothing: the disk is full, or (``by_reader``) nobody reads it any more.

    Not an error of what the command did, which is done.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"done, but its result cannot be written to stdout: {error}")
        self.by_reader: bool = isinstance(error, BrokenPipeError)


def print_json(shown: Mapping[str, Any]) -> None:
    """One object, on one line, at once. Raises: OutputLost."""
    _print(json.dumps(shown, default=str))


def print_text(text: str) -> None:
    """One line, whatever is in it. Raises: OutputLost."""
    _print(for_terminal(text))


def print_lines(lines: Iterable[str]) -> None:
    """The same for each of ``lines``."""
    _print("\n".join(map(for_terminal, lines)))


def _print(text: str) -> None:
    if sys.stdout is None:  # Python's own print would say nothing
        raise OutputLost(OSError(errno.EBADF, "it is closed"))
    try:
        print(text, flush=True)
    except OSError as error:
        raise OutputLost(error) from error


def complain(command: str | None, line: str) -> None:
    """One line on stderr, where somebody may read it; None is no command that there is."""
    name = "hotswap" if command is None else f"hotswap {command}"
    # The exit code tells as much as it can where nobody does.
    with suppress(OSError):
        print(f"{name}: {for_terminal(line)}", file=sys.stderr, flush=True)


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether the command line asks for JSON: to be known before it is understood."""
    return "--json" in arguments


def usage_object(message: str) -> dict[str, Any]:
    """What ``--json`` prints for a command line that is wrong."""
    return error_object("UsageError", message, weights="untouched", code=ExitCode.USAGE)


def wrong_usage(command: str | None, message: str, *, as_json: bool) -> ExitCode:
    """Tell what is wrong with the command line or a setting, and return the exit code for it."""
    if as_json:
        print_json(usage_object(message))
    else:
        complain(command, message)
    return ExitCode.USAGE


def fail(command: str, error: BaseException, *, as_json: bool) -> ExitCode:
    """Tell of ``error``, and return the exit code for it."""
    from hotswap.client import WeightsAfter, weights_after

    code = exit_code_of(error, command)
    # This machine's disks, or a word of the command line: no server's weights are on either.
    untouched = isinstance(error, OSError) or code is ExitCode.USAGE
    said = "stopped by Ctrl-C" if isinstance(error, KeyboardInterrupt) else str(error)
    told = [said or type(error).__name__, *getattr(error, "__notes__", ())]
    if as_json:
        shown = error_object(
            type(error).__name__,
            "; ".join(told),
            weights=WeightsAfter.UNTOUCHED if untouched else weights_after(error),
            retryable=bool(getattr(error, "retryable", False)),
            code=code,
        )
        if hasattr(error, "local_version"):
            shown["error"]["local_version"] = error.local_version
        print_json(shown)
    else:
        for line in told:
            complain(command, line)
    return code


def error_object(
    kind: str, message: str, *, weights: str, code: ExitCode, retryable: bool = False
) -> dict[str, Any]:
    """What ``--json`` prints instead of a result."""
    return {
        "error": {
            "class": kind,
            "message": message,
            "weights": weights,
            "retryable": retryable,
            "exit_code": int(code),
        }
    }


def retries_shown(command: str) -> AbstractContextManager[None]:
    """Within it, what the client says of its retries is on stderr, as lines of ``command``."""
    return _heard_by(_Lines(command))


def retries_unsaid() -> AbstractContextManager[None]:
    """Within it, nothing says so: for a command that shows by itself whether it is answered."""
    return _heard_by(logging.NullHandler())


@contextmanager
def _heard_by(handler: logging.Handler) -> Iterator[None]:
    log = logging.getLogger("hotswap.client")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _Lines(logging.Handler):
    """Looks for stderr anew each time: a live bar puts itself in its place."""

    def __init__(self, command: str) -> None:
        super().__init__()
        self._command = command

    def emit(self, record: logging.LogRecord) -> None:
        complain(self._command, record.getMessage())


def console_of(stream: Any) -> Console | None:
    """A terminal that can show something live; None without one, or without rich."""
    if stream is None or not stream.isatty() or os.environ.get("TERM") == "dumb":
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream)
