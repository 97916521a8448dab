"""What a server shows that was started on a checkpoint and never swapped."""

from __future__ import annotations

from pathlib import Path

from tests.process.evidence import Evidence
from tests.process.in_process import load, serving

__all__ = ["fresh"]

_KNOWN: dict[Path, Evidence] = {}


async def fresh(directory: Path) -> Evidence:
    """Its evidence; a server is started once a directory."""
    if directory not in _KNOWN:
        async with serving(load(directory)) as server:
            _KNOWN[directory] = await Evidence.of(server.client)
    return _KNOWN[directory]
