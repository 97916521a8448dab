"""A process that pulls, in our way or the plain one, one version for each command.

``python -m contrib.bench.pull_side SIDE LOCAL SOURCE BASE THREADS``, a side being ``hotswap``,
``two_copies`` (the same with ``Keep.COPIES``), ``plain`` or ``second_copy``: puts version 0 into
``LOCAL`` and says its configuration; a command is ``{"version": N}``.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import zstandard

from contrib.bench.plain_reader import apply_version, mark
from contrib.bench.plain_second_copy import copy_base, copy_version
from hotswap.stream import Keep, directory_of, pull

__all__ = ["MODULE"]

MODULE = "contrib.bench.pull_side"

_Phases = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    local: Path
    source: Path
    base: Path
    threads: int

    def hotswap(self, version: int) -> _Phases:
        """Pull; seconds of each phase."""
        return self._pulled(version, Keep.FILES)

    def two_copies(self, version: int) -> _Phases:
        """As ``hotswap``, with a second copy."""
        return self._pulled(version, Keep.COPIES)

    def plain(self, version: int) -> _Phases:
        """Copy the base as version 0; apply any other one."""
        if version == 0:
            shutil.copytree(self.base, self.local)
            mark(self.local, 0)
        else:
            apply_version(self.local, directory_of(self.source, version), threads=self.threads)
        return {}

    def second_copy(self, version: int) -> _Phases:
        """As ``plain``, never torn."""
        if version == 0:
            copy_base(self.local, self.base)
        else:
            copy_version(self.local, directory_of(self.source, version), threads=self.threads)
        return {}

    def _pulled(self, version: int, keep: Keep) -> _Phases:
        report = pull(
            self.local,
            self.source,
            version,
            base_dir=self.base,
            threads=self.threads,
            keep=keep,
        )
        return report.seconds


def _serve(run: Callable[[int], _Phases], configuration: Mapping[str, object]) -> None:
    run(0)
    print(json.dumps(configuration), flush=True)
    for line in sys.stdin:
        version = json.loads(line)["version"]
        start = time.perf_counter()
        phases = run(version)
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds, "phases": dict(phases)}), flush=True)


if __name__ == "__main__":
    kind, local, source, base, threads = sys.argv[1:]
    places = _Places(local=Path(local), source=Path(source), base=Path(base), threads=int(threads))
    configuration = {
        "threads": int(threads),
        "zstd": ".".join(map(str, zstandard.ZSTD_VERSION)),
        "local": local,
    }
    runs = {
        "hotswap": places.hotswap,
        "two_copies": places.two_copies,
        "plain": places.plain,
        "second_copy": places.second_copy,
    }
    _serve(runs[kind], configuration)
