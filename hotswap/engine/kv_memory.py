"""How much memory there is for keys and values, once the model is loaded."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from hotswap.engine.kv import KvShape

__all__ = ["free_bytes", "tokens_that_fit"]


def tokens_that_fit(
    shape: KvShape, *, max_total_tokens: int | None, mem_fraction_static: float
) -> int:
    """Tokens in the given fraction of free memory, ``max_total_tokens`` at most."""
    fit = int(free_bytes(shape.device) * mem_fraction_static) // shape.token_bytes
    return fit if max_total_tokens is None else min(fit, max_total_tokens)


def free_bytes(device: torch.device) -> int:
    """Memory that may still be taken: of the device, or of this host and its control group."""
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        return int(free)
    available = _available_bytes(Path("/proc/meminfo"))
    left = _group_bytes(Path("/sys/fs/cgroup"))
    return available if left is None else min(available, left)


def _available_bytes(meminfo: Path) -> int:
    try:
        lines = meminfo.read_text().splitlines()
        kilobytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        # No Linux: what is free is not told, so all there is.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(kilobytes) * 1024


def _group_bytes(group: Path) -> int | None:
    """What the control group leaves; None where it sets no limit."""
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        cached = dict(
            line.split() for line in (group / "memory.stat").read_text().splitlines()
        ).get("inactive_file", "0")
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    # Files that nobody has used lately make room by themselves.
    return max(int(limit) - used + int(cached), 0)
