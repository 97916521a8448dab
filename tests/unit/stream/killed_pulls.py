"""Pulls that are killed, each in a fork of this process: ``python -m`` with a JSON argument.

Prints the exit status of each, a signal as a negative number.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from hotswap.stream import Keep, materialize, pull
from hotswap.stream.disk import Disk
from tests.unit.stream.compiled import compile_once
from tests.unit.stream.crash_setups import a_write_for_each_blob, length_counts_from
from tests.unit.stream.faulty_disk import killing


def main(spec: dict[str, object]) -> None:
    """Carry out ``spec``."""
    statuses = list[int]()
    compile_once()
    pulls = spec["pulls"]
    assert isinstance(pulls, list)
    for local, point in pulls:
        child = os.fork()
        if child == 0:
            _work(spec, Path(local), killing(point))
            os._exit(0)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    sys.stdout.write(json.dumps(statuses))


def _work(spec: dict[str, object], local: Path, disk: Disk) -> None:
    """Pull; without ``keep`` what the log has goes into the files instead."""
    if spec["keep"] is None:
        materialize(local, threads=1, disk=disk)
        return
    journal_bytes = int(str(spec["long_journal_bytes"]))
    with length_counts_from(journal_bytes), a_write_for_each_blob():
        pull(
            local,
            Path(str(spec["source"])),
            int(str(spec["target"])),
            base_dir=Path(str(spec["base"])),
            threads=1,
            disk=disk,
            keep=Keep(str(spec["keep"])),
        )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
