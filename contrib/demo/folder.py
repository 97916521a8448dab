"""Directories that are either complete or absent."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["built_whole"]


@contextmanager
def built_whole(directory: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``directory``; rename it there once the block succeeds.

    A block that fails, or is interrupted, leaves nothing. An older ``directory``
    is replaced.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        yield draft
        if directory.exists():
            shutil.rmtree(directory)
        draft.chmod(0o755)
        draft.rename(directory)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
