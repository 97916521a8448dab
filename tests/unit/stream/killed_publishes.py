"""A publisher that is killed again and again, and readers that look after each time.

``python -m`` with a JSON argument. Each publisher is a fork of this process that ends itself at
one of its calls to the disk; the readers are this process. Prints what was seen.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import torch

from hotswap.stream import Publisher, published_versions
from tests.unit.stream.compiled import compile_once
from tests.unit.stream.faulty_disk import FaultyDisk, killing
from tests.unit.stream.trained import State, after_step, bytes_in, first_state, pulled, write_base

_VERSIONS_EACH = 2


class Run:
    """A source whose version ``n`` has to be ``states[n]``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = root / "source"
        self.states: list[State] = [first_state(size=140)]
        self.base = write_base(root / "base", self.states[0])

    def state(self, version: int) -> State:
        """What training has after ``version`` steps."""
        while len(self.states) <= version:
            self.states.append(after_step(self.states[-1], len(self.states)))
        return self.states[version]

    def publish(self, disk: FaultyDisk) -> None:
        """A publisher begins, goes on with the run and publishes."""
        with Publisher(
            self.source,
            run="a",
            base_dir=self.base,
            threads=1,
            disk=disk,
            anchor_every=5,
            aggregate_every=3,
            keep=3,
        ) as publisher:
            for _ in range(_VERSIONS_EACH):
                publisher.publish(self.state(publisher.version + 1))

    def check(self, *, late: str | None = None) -> int:
        """Readers at the newest version have its bytes; which one that is."""
        newest = max(published_versions(self.source), default=0) if self.source.exists() else 0
        if newest:
            for name in ("local", *(() if late is None else (late,))):
                got = pulled(self.root, self.source, newest, base=self.base, name=name)
                assert got == bytes_in(self.state(newest)), (newest, name)
        return newest


def main(spec: dict[str, int], root: Path) -> None:
    """Kill ``spec["kills"]`` publishers, at calls that ``spec["seed"]`` chooses."""
    torch.set_num_threads(1)
    chance = random.Random(spec["seed"])
    run = Run(root)
    compile_once()
    killed = 0
    for number in range(spec["kills"]):
        # Every state that the child may need is made before it begins.
        run.state(run.check() + _VERSIONS_EACH)
        child = os.fork()
        if child == 0:
            run.publish(killing(chance.randrange(spec["calls"])))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, -9), status
        killed += status == -9
        run.check(late=f"late-{number}" if number % 4 == 0 else None)
    run.publish(FaultyDisk())
    newest = run.check(late="last")
    assert not list(run.source.glob(".weight_v*"))
    sys.stdout.write(json.dumps({"killed": killed, "newest": newest}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
