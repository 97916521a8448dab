"""Imported by a server as its operator's pre-read hook: its disk fails, or kills it.

``PULL_FAULTS`` names a JSON file that a test writes: ``at``, the number of a call of the next
pull to the disk, and ``code``, the errno of what it raises, 0 to end the process there. The
next pull takes the file away.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

from tests.unit.stream.faulty_disk import FaultyDisk

__all__ = ["HANGING", "HOOK", "arm", "called", "environ", "hang", "hang_async", "look"]

_VARIABLE = "PULL_FAULTS"
HOOK = f"{__name__}.look"
HANGING = (f"{__name__}.hang", f"{__name__}.hang_async")
"""Hooks that never come back, and say through ``called`` that they were called."""


def environ(plan: Path) -> Mapping[str, str]:
    """What a server is started with, for ``plan`` to be its file."""
    return {_VARIABLE: str(plan)}


def called(plan: Path) -> Path:
    """The name of a pipe, which the test makes, for ``plan``."""
    return plan.with_name(f"{plan.name}.called")


def _tell() -> None:
    with called(Path(os.environ[_VARIABLE])).open("w") as pipe:
        pipe.write("called")


def arm(plan: Path, *, at: int, code: int = 0) -> None:
    """Let the next pull fail, or end its process, at its call ``at``."""
    plan.write_text(json.dumps({"at": at, "code": code}))


def look(source_dir: str, target_version: int) -> None:
    """The hook itself does nothing."""


def hang(source_dir: str, target_version: int) -> None:
    """For ever, on its own thread."""
    _tell()
    threading.Event().wait()


async def hang_async(source_dir: str, target_version: int) -> None:
    """For ever, on the event loop."""
    _tell()
    await asyncio.Event().wait()


def _disk() -> FaultyDisk:
    """Of one pull."""
    plan = Path(os.environ[_VARIABLE])
    if not plan.exists():
        return FaultyDisk()
    told = json.loads(plan.read_text())
    plan.unlink()

    def fault(number: int) -> None:
        if number < told["at"]:
            return
        if not told["code"]:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(told["code"], os.strerror(told["code"]))

    return FaultyDisk(fault)


if _VARIABLE in os.environ:
    # ``hotswap.stream.pull`` is the function of that name.
    vars(importlib.import_module("hotswap.stream.pull"))["LocalDisk"] = _disk
