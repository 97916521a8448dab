"""A process that has imported what a server needs, and forks one for each that is asked for.

Importing torch is most of what the start of a server costs. A server that is forked from here
runs ``python -m PROGRAM`` from its first line to the exit of the interpreter, in a process of
its own; only the modules are there already.

A request is a line of JSON on standard input: ``{"command", "environ", "cwd", "log"}``, answered
with ``{"pid"}``, or ``{"ended": pid}``, answered with ``{"code"}``, which is None while it runs
and negative for a signal. With its standard input it ends, and kills what still runs.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from hotswap.cli.plugins import load_installed

__all__ = ["Asked", "main"]

# What a server imports as late as it can.
_LATE = ("hotswap.serve", "hotswap.cli.serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One process: ``command`` is a module and its arguments, ``log`` takes both its streams."""

    command: Sequence[str]
    environ: dict[str, str]
    cwd: str
    log: str

    def become(self) -> None:
        """Make this process, which was forked just now, the one that was asked for."""
        with open(os.devnull, "rb") as nothing, open(self.log, "ab") as log:
            os.dup2(nothing.fileno(), 0)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.environ.clear()
        os.environ.update(self.environ)
        os.chdir(self.cwd)
        program, *arguments = self.command
        sys.argv[:] = [program, *arguments]
        runpy.run_module(program, run_name="__main__", alter_sys=True)


class _Forker:
    """The processes that were forked and have not been seen to end."""

    def __init__(self) -> None:
        self._running: set[int] = set()

    def fork(self, asked: Asked) -> int:
        """0 in the new process."""
        pid = os.fork()
        if pid:
            self._running.add(pid)
        return pid

    def code(self, pid: int) -> int | None:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            return None
        self._running.remove(pid)
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _say(answers: TextIO, answer: Any) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def main() -> Asked | None:
    """Answer until standard input ends; returns what to become in each process that is forked."""
    load_installed()
    for module in _LATE:
        importlib.import_module(module)
    # A collection in a forked process would copy every page that it looks at.
    gc.collect()
    gc.freeze()
    forker = _Forker()
    with os.fdopen(os.dup(1), "w") as answers:
        for line in sys.stdin:
            request = json.loads(line)
            if "ended" in request:
                _say(answers, {"code": forker.code(request["ended"])})
                continue
            asked = Asked(**request)
            pid = forker.fork(asked)
            if pid == 0:
                return asked
            _say(answers, {"pid": pid})
    forker.kill()
    return None


if __name__ == "__main__":
    # The exit of a forked process is that of an interpreter, whose frames are all left.
    if (wanted := main()) is not None:
        wanted.become()
