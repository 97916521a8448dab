"""A pull by a user who may not do everything: ``python -m`` with a JSON argument.

Root may do anything, so that root becomes nobody first. Prints how the pull ended.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from pathlib import Path

from hotswap.stream import StreamError, pull, reading

NOBODY = 65534


def main(spec: dict[str, str]) -> None:
    """Carry out ``spec``."""
    local = Path(spec["local"])
    # Imported above: nobody may not read where root has its Python.
    assert fcntl.LOCK_EX
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    answer = dict[str, object]()
    try:
        report = pull(
            local,
            Path(spec["source"]),
            int(spec["target"]),
            base_dir=Path(spec["base"]),
            threads=1,
        )
        answer |= {"mode": report.mode, "reason": report.reason}
    except StreamError as error:
        answer |= {
            "class": type(error).__name__,
            "said": str(error),
            "local_version": error.local_version,
            "retryable": error.retryable,
        }
    try:
        with reading(local, timeout_s=5):
            answer["readable"] = True
    except StreamError as error:
        answer["readable"] = str(error)
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
