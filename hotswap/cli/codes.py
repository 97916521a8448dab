"""Exit codes. A script that knows only the code knows what happened to the weights."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ExitCode", "exit_code_of"]


class ExitCode(IntEnum):
    """How a command of ``hotswap`` ended."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NO_ANSWER = 3
    NOT_WHOLE = 4
    UNKNOWN = 5
    STILL_PAUSED = 6
    INTERRUPTED = 130


_OF_COPIES = frozenset({"inspect", "materialize", "pull", "verify"})
"""The commands whose work is a local copy: with the others it is only what a server should read."""


def exit_code_of(error: BaseException, command: str | None = None) -> ExitCode:
    """The code for what a client or pull raised in ``command``; ValueError is a wrong argument."""
    from hotswap.client import NoAnswer, NotReady, StillPaused, WeightsAfter, weights_after
    from hotswap.stream import LocalDamaged, StreamError

    by_class = (
        (KeyboardInterrupt, ExitCode.INTERRUPTED),
        (ValueError, ExitCode.USAGE),
        (NoAnswer | NotReady, ExitCode.NO_ANSWER),
        (StillPaused, ExitCode.STILL_PAUSED),
        (OSError, ExitCode.FAILED),  # of this machine's disks, which no server's weights are on
    )
    for kind, code in by_class:
        if isinstance(error, kind):
            return code
    if isinstance(error, LocalDamaged) and command in _OF_COPIES:
        return ExitCode.NOT_WHOLE
    if isinstance(error, StreamError) and error.retryable:
        return ExitCode.NO_ANSWER
    if getattr(error, "__notes__", None) and weights_after(error) is WeightsAfter.UNTOUCHED:
        return ExitCode.STILL_PAUSED
    return {
        WeightsAfter.NOT_WHOLE: ExitCode.NOT_WHOLE,
        WeightsAfter.UNKNOWN: ExitCode.UNKNOWN,
    }.get(weights_after(error), ExitCode.FAILED)
