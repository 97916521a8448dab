"""Telling those who move files that a version is there: ``hotswap_post_write`` hooks."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from hotswap.stream.layout import spelled

if TYPE_CHECKING:
    from hotswap.post_write import PostWrite

__all__ = ["announce"]


def announce(hooks: Sequence[PostWrite], directory: Path | str, version: int) -> None:
    """Run ``hooks`` on a written version. Raises: as ``run_post_write``."""
    if not hooks:
        return
    # Only now: a trainer without hooks needs nothing of the server.
    from hotswap.post_write import run_post_write_from_thread

    # A thread of its own: a trainer that is async has a loop running on this one.
    with ThreadPoolExecutor(1, thread_name_prefix="hotswap-announce") as thread:
        thread.submit(run_post_write_from_thread, hooks, directory, spelled(version)).result()
