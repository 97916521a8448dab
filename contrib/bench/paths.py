"""Where the benchmarks keep what they generate (ignored by git, safe to delete)."""

from __future__ import annotations

from pathlib import Path

__all__ = ["BENCH_DIR", "REPOSITORY"]

REPOSITORY = Path(__file__).resolve().parents[2]
BENCH_DIR = REPOSITORY / ".bench"
