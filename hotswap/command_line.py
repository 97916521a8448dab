"""Take keys off the command line, where every user of the machine can read them.

``ps`` shows the memory in which the kernel put a process's arguments. It belongs to
the process, which may write over it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["hide_keys", "is_key_flag", "masked"]

_KEY_FLAGS = ("--api-key", "--admin-api-key")

_PROC = Path("/proc/self")

# Of /proc/PID/stat, counted from the field after the name, which may have blanks in it.
_ARG_START, _ARG_END = 45, 46


def hide_keys() -> None:
    """Write asterisks over every key on this process's command line.

    ``sys.argv`` and ``sys.orig_argv`` are treated alike. Raises: OSError when a key
    stays readable.
    """
    if masked(sys.orig_argv) == sys.orig_argv:
        return
    sys.argv[:] = masked(sys.argv)
    sys.orig_argv[:] = masked(sys.orig_argv)
    wanted = masked(_shown())
    start, end = _argument_memory()
    block = b"\0".join(word.encode(errors="surrogateescape") for word in wanted) + b"\0"
    if end - start < len(block) or ctypes.string_at(start, end - start) != _raw():
        raise OSError("the arguments of this process are not where the kernel says they are")
    ctypes.memmove(start, block, len(block))
    if _shown() != wanted:
        raise OSError("the arguments of this process stay as they are")


def is_key_flag(word: str) -> bool:
    """Whether ``word`` is ``--api-key`` or ``--admin-api-key``, with or without ``=KEY``."""
    return word.partition("=")[0] in _KEY_FLAGS


def masked(words: Sequence[str]) -> list[str]:
    """``words`` with asterisks, as many as there are bytes, for the value of every key flag."""
    shown: list[str] = []
    follows = False
    for word in words:
        flag, equals, value = word.partition("=")
        if follows:
            shown.append(_stars(word))
        elif equals and flag in _KEY_FLAGS:
            shown.append(f"{flag}={_stars(value)}")
        else:
            shown.append(word)
        follows = not follows and word in _KEY_FLAGS
    return shown


def _stars(text: str) -> str:
    return "*" * len(text.encode(errors="surrogateescape"))


def _raw() -> bytes:
    try:
        return (_PROC / "cmdline").read_bytes()
    except FileNotFoundError as error:
        raise OSError("there is no /proc to look at") from error


def _shown() -> list[str]:
    words = _raw().removesuffix(b"\0").split(b"\0")
    return [word.decode(errors="surrogateescape") for word in words]


def _argument_memory() -> tuple[int, int]:
    """First address of the arguments, and the one after the last."""
    fields = (_PROC / "stat").read_text().rpartition(")")[2].split()
    return int(fields[_ARG_START]), int(fields[_ARG_END])
