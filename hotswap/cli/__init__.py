"""The ``hotswap`` command.

Nothing here imports torch before the environment is set: OpenMP reads its wait
policy once, and threads that spin after a forward pass slow the copy that follows.
"""

from __future__ import annotations

from hotswap.cli.entry import main

__all__ = ["main"]
