"""The configuration that a figure holds for: without it a ratio says little."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import torch

from contrib.bench.paths import REPOSITORY

__all__ = ["THREADS", "describe_machine", "warm_page_cache"]

THREADS = len(os.sched_getaffinity(0))
_WARM_CHUNK_BYTES = 16 << 20


def describe_machine() -> dict[str, object]:
    """CPU, kernel, torch, the commit, and how busy the machine is now."""
    return {
        "cpu": _cpu(),
        "cores": THREADS,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "huge_pages": _setting("/sys/kernel/mm/transparent_hugepage/enabled"),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "commit": _commit(),
    }


def warm_page_cache(*directories: Path) -> None:
    """Read every file of the checkpoints once, so that no run waits for the disk."""
    for directory in directories:
        for path in sorted(directory.iterdir()):
            with path.open("rb", buffering=0) as file:
                while file.read(_WARM_CHUNK_BYTES):
                    pass


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _setting(path: str) -> str:
    text = Path(path).read_text() if Path(path).exists() else "[absent]"
    return text[text.find("[") + 1 : text.find("]")]


def _commit() -> str:
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "not a git checkout"
