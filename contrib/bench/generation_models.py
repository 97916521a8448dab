"""The two checkpoints that the generation benchmarks use: the demo's SmolLM2-135M."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from contrib.bench.machine import warm_page_cache
from contrib.bench.paths import REPOSITORY

__all__ = ["models"]


def models() -> tuple[Path, Path]:
    """Both in bfloat16 and in the page cache; made when absent."""
    folder = REPOSITORY / ".demo"
    subprocess.run(
        [sys.executable, "-m", "contrib.demo", "--prepare"],
        cwd=REPOSITORY,
        check=True,
        stdout=sys.stderr,
    )
    pair = folder / "A", folder / "B"
    warm_page_cache(*pair)
    return pair
