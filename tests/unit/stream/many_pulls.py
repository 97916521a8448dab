"""Pulls of one directory by many processes at once: ``python -m`` with a JSON argument.

Each is a fork of this process. Whoever holds the lock goes on once all of them have seen the
state and wait, or would. Prints what each of them did, and how often the source was looked at.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from hotswap.stream import pull
from hotswap.stream.disk import LocalDisk


class Arriving(LocalDisk):
    """Tells that its pull has come as far as to the lock."""

    def __init__(self, arrived: int) -> None:
        self._arrived = arrived

    def make_directory(self, path: Path) -> None:
        super().make_directory(path)
        if path.name == ".weight_sync":
            os.write(self._arrived, b".")


def main(spec: dict[str, str], count: int) -> None:
    """Carry out ``spec`` in ``count`` processes."""
    arrived, arrive = os.pipe()
    looked, look = os.pipe()
    modes, told = os.pipe()

    def pre_read(_source: Path, _target: int) -> None:
        os.write(look, b".")
        come = 0
        while come < count:
            come += len(os.read(arrived, count - come))

    children = list[int]()
    for _ in range(count):
        child = os.fork()
        if child == 0:
            report = pull(
                Path(spec["local"]),
                Path(spec["source"]),
                int(spec["target"]),
                base_dir=Path(spec["base"]),
                threads=1,
                disk=Arriving(arrive),
                pre_read=pre_read,
            )
            os.write(told, f"{report.mode} ".encode())
            os._exit(0)
        children.append(child)
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(look)
    os.close(told)
    with open(looked, "rb") as looks, open(modes, "rb") as said:
        answer = {"looks": len(looks.read()), "modes": said.read().decode().split()}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]))
