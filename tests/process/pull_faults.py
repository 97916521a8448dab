"""Imported by a server as its operator's pre-read hook: its disk fails, or kills it.

``PULL_FAULTS`` names a JSON file that a test writes: ``at``, the number of a call of the next
pull to the disk, and ``code``, the errno of what it raises, 0 to end the process there. The
next pull takes the file away.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from tests.unit.stream.faulty_disk import FaultyDisk

__all__ = ["HOOK", "arm", "environ", "look"]

_VARIABLE = "PULL_FAULTS"
HOOK = f"{__name__}.look"


def environ(plan: Path) -> Mapping[str, str]:
    """What a server is started with, for ``plan`` to be its file."""
    return {_VARIABLE: str(plan)}


def arm(plan: Path, *, at: int, code: int = 0) -> None:
    """Let the next pull fail, or end its process, at its call ``at``."""
    plan.write_text(json.dumps({"at": at, "code": code}))


def look(source_dir: str, target_version: int) -> None:
    """The hook itself does nothing."""


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
