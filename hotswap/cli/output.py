"""What the commands print: text for people, or one JSON object for programs.

Rule: stdout has the result and nothing else; progress and errors of people's mode go to
stderr. With ``--json`` an error is the result.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hotswap.cli.codes import ExitCode, exit_code_of

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console_of", "fail", "print_json", "print_text"]


def print_json(shown: Mapping[str, Any]) -> None:
    """One object, on one line, at once."""
    print(json.dumps(shown, default=str), flush=True)


def print_text(text: str) -> None:
    """One line or several."""
    print(text, flush=True)


def fail(command: str, error: BaseException, *, as_json: bool) -> ExitCode:
    """Tell of ``error``, and return the exit code for it."""
    from hotswap.client import weights_after

    code = exit_code_of(error)
    told = [str(error) or type(error).__name__, *getattr(error, "__notes__", ())]
    if as_json:
        print_json(
            {
                "error": {
                    "class": type(error).__name__,
                    "message": "; ".join(told),
                    "weights": weights_after(error),
                    "retryable": bool(getattr(error, "retryable", False)),
                    "exit_code": int(code),
                }
            }
        )
    else:
        for line in told:
            print(f"hotswap {command}: {line}", file=sys.stderr, flush=True)
    return code


def console_of(stream: Any) -> Console | None:
    """A terminal that can show something live; None without one, or without rich."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream)
