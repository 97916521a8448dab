"""Processes that pull one stream into one log, each with a compactor: ``python -m`` JSON COUNT.

Rounds begin when everybody is through with the one before: all of them then ask for the same next
version, while the logs of the round before are being written into the files. Prints what each
pull did, and each time that versions were written into files, from which to which.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from pathlib import Path

from hotswap.pulls.compactor import Compactor
from hotswap.pulls.logs import LogSizes
from hotswap.stream import Keep, PullMode, PullReport, pull
from hotswap.stream.append import LogLimits

LIMITS = LogLimits(versions=6, share=100.0)
_IN_FILES = (PullMode.DELTA, PullMode.FOLD)

Told = dict[str, list[object]]


class _Written(logging.Handler):
    """Hears of every pull, and of every log that was written into files."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.spans = list[object]()
        self.warnings = list[object]()

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno > logging.INFO:
            self.warnings.append(record.getMessage())
            return
        for said in record.args or ():
            if isinstance(said, PullReport) and said.mode in _IN_FILES:
                self.spans.append((said.start, said.version))


def one(spec: dict[str, str], go: int, told: int) -> None:
    """Pull every version, each when ``go`` has a byte; a byte to ``told`` after each, and in the
    end what was done."""
    written = _Written()
    log = logging.getLogger("hotswap.pull")
    log.setLevel(logging.INFO)
    log.addHandler(written)
    local, done = Path(spec["local"]), list[object]()
    compactor = Compactor(LogSizes(), threads=1, limits=LIMITS, idle_s=0.0005)
    for target in range(int(spec["versions"]) + 1):
        _wait(go)
        report = pull(
            local,
            Path(spec["source"]),
            target,
            base_dir=Path(spec["base"]),
            threads=1,
            keep=Keep.LOG,
            limits=LIMITS,
            give_way=True,
        )
        done.append((str(report.mode), report.version))
        compactor.look(local)
        os.write(told, b".")
    _wait(go)
    for thread in threading.enumerate():
        if thread.name == "hotswap-compact":
            thread.join(60)
    answer: Told = {"pulls": done, "spans": written.spans, "warnings": written.warnings}
    os.write(told, json.dumps(answer).encode())


def _wait(go: int) -> None:
    assert os.read(go, 1), "who starts the rounds has ended"


def main(spec: dict[str, str], count: int) -> None:
    """Carry out ``spec`` in ``count`` processes, round by round."""
    ways, answers, children = list[int](), list[int](), list[int]()
    for _ in range(count):
        (go, way), (answer, told) = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            for fd in (way, answer, *ways, *answers):
                os.close(fd)  # so that whoever ends, the others see it
            one(spec, go, told)
            os._exit(0)
        os.close(go)
        os.close(told)
        ways.append(way)
        answers.append(answer)
        children.append(child)
    for _ in range(int(spec["versions"]) + 1):
        for way in ways:
            os.write(way, b".")
        assert [os.read(answer, 1) for answer in answers] == [b"."] * count
    for way in ways:
        os.write(way, b".")
    said = list[object]()
    for answer in answers:
        with open(answer, "rb") as file:
            said.append(json.loads(file.read()))
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]))
