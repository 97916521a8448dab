"""``hotswap serve`` whose disk strategy stands still before it reads, until a file appears.

Run as ``python -m tests.process.gated_server serve ...`` with ``GATE`` naming a directory:
``reached`` is made there when a tensor is to be read, which goes on once ``open`` is there.
With ``--load-mode direct`` that is in the middle of a commit.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hotswap.plugins import Plugins
from hotswap.serve import run
from hotswap.settings import add_core_flags, settings_from
from tests.process.failing import Gate
from tests.process.slow_source import SlowStrategy

__all__ = ["FileGate", "main"]


class FileGate(Gate):
    """A gate between two processes."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def wait(self) -> None:
        """Stand still until there is ``open``."""
        (self._directory / "reached").touch()
        while not (self._directory / "open").exists():
            # Polling another process: there is no event of ours to wait for.
            time.sleep(0.01)


def main(arguments: Sequence[str]) -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    add_core_flags(parser)
    settings = settings_from(parser.parse_args(arguments))
    gate = FileGate(Path(os.environ["GATE"]))
    run(settings, Plugins(strategies={"disk": lambda _options: SlowStrategy(reading=gate)}))


if __name__ == "__main__":
    main(sys.argv[1:])
