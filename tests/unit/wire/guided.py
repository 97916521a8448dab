"""Payloads that atheris makes, led by which lines of the reader they reach.

``python -m tests.unit.wire.guided RUNS DIRECTORY``, from the payloads in ``DIRECTORY``. Its exit
status is 0 unless one is neither refused nor right, raises an audit event, or takes more memory
than is allowed.
"""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from typing import Any

from hotswap.testing.holdings import resident_bytes

# It comes without types.
atheris: Any = import_module("atheris")

with atheris.instrument_imports(include=["hotswap.wire"]):
    from hotswap.wire import FLATTENED
    from tests.unit.wire.fuzzing import judged

__all__ = ["main"]

ROOM_BYTES = 64 * 2**20
WARM_UPS, LOOK_EVERY = 100, 50


class Judge:
    """Judges payloads, and looks every now and then how much memory that takes."""

    def __init__(self) -> None:
        self._judged = 0
        self._start_bytes = 0

    def __call__(self, case: bytes) -> None:
        """Judge one; a byte in front of it says its format."""
        if case:
            judged(case[1:], load_format=FLATTENED if case[0] % 2 else None)
        self._judged += 1
        if self._judged == WARM_UPS:
            self._start_bytes = resident_bytes()
        elif self._judged > WARM_UPS and self._judged % LOOK_EVERY == 0:
            assert resident_bytes() - self._start_bytes <= ROOM_BYTES


def main() -> None:
    """Ends the process."""
    runs, corpus = sys.argv[1:]
    flags = [f"-runs={runs}", "-seed=7", "-rss_limit_mb=0", "-max_len=4096"]
    with tempfile.TemporaryDirectory() as made:
        atheris.Setup([sys.argv[0], *flags, f"-artifact_prefix={made}/", corpus], Judge())
        atheris.Fuzz()


if __name__ == "__main__":
    main()
