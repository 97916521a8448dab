"""The configuration that a figure holds for: without it a ratio says little."""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import subprocess
from pathlib import Path

import torch

from contrib.bench.paths import REPOSITORY

__all__ = ["THREADS", "describe_machine", "warm_free_memory", "warm_page_cache"]

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


def warm_free_memory(size_bytes: int) -> None:
    """Touch as much free memory and let it go again, so that it is there for the next.

    A virtual machine may give free memory back to its host. Whoever touches it first
    then stops the virtual processor for milliseconds a page, whatever else runs on it,
    which is the machine's doing and would be counted as the server's.
    """
    with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, size_bytes, mmap.PAGESIZE):
            memory[at] = 1


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
