"""Starts ``killed_publishes`` and says what it saw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.markdown_blocks import ROOT
from tests.untraced import UNTRACED

__all__ = ["kill_publishers"]


def kill_publishers(root: Path, *, kills: int, seed: int) -> dict[str, int]:
    """Up to ``kills`` publishers of one run are killed; how many were, and the last version.

    Raises: AssertionError when a reader was wrong.
    """
    root.mkdir(exist_ok=True)
    spec = {"kills": kills, "seed": seed, "calls": 60}
    command = [
        sys.executable,
        "-m",
        "tests.unit.stream.killed_publishes",
        json.dumps(spec),
        str(root),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **UNTRACED},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, int] = json.loads(done.stdout)
    return seen
