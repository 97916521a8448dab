"""A process that pulls to a log, one version for each command.

``python -m contrib.bench.pull_log_side SIDE LOCAL SOURCE BASE THREADS``, a side being ``native`` or
``plain``, which is without numba, installed or not: puts version 0 into ``LOCAL`` and says its
configuration; a command is ``{"version": N}``.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any, cast

if __name__ == "__main__" and sys.argv[1] == "plain":
    # What Python looks up there as None cannot be imported.
    cast(dict[str, Any], sys.modules)["numba"] = None

from hotswap.stream import Keep, PullReport, pull
from hotswap.stream.gap_native import has_native

__all__ = ["MODULE"]

MODULE = "contrib.bench.pull_log_side"


def _serve(local: Path, source: Path, base: Path, threads: int) -> None:
    def reach(version: int) -> PullReport:
        return pull(local, source, version, base_dir=base, threads=threads, keep=Keep.LOG)

    reach(0)
    print(json.dumps({"threads": threads, "native": has_native()}), flush=True)
    for line in sys.stdin:
        version = json.loads(line)["version"]
        if version == 2:
            # As a server does before it serves: all that numba compiled would be looked through
            # in one pull of six, for a tenth of a second.
            gc.collect()
            gc.freeze()
        begin = time.perf_counter()
        report = reach(version)
        reply = {
            "seconds": time.perf_counter() - begin,
            "phases": dict(report.seconds),
            "mode": report.mode,
            "written_bytes": report.written_bytes,
        }
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    _, local, source, base, threads = sys.argv[1:]
    _serve(Path(local), Path(source), Path(base), int(threads))
