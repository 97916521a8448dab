"""100 000 damaged payloads: no crash, no audit event, no file, no memory."""

from __future__ import annotations

import gc
import os
import random
import resource
from collections import Counter

import pytest

from hotswap.testing.holdings import resident_bytes
from hotswap.wire import FLATTENED
from tests.unit.wire.fuzzing import damaged, judged
from tests.unit.wire.originals import originals
from tests.unit.wire.senders import sharing

pytestmark = [pytest.mark.long]

CASES = 100_000
ROOM_BYTES = 64 * 2**20


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("seed", [1])
def test_damaged_payloads(seed: int) -> None:
    draw = random.Random(seed)
    outcomes: Counter[bool] = Counter()
    with sharing("file_system"), originals() as payloads:
        for load_format, payload in payloads:
            judged(payload, load_format=load_format)
        gc.collect()
        descriptors, memory, peak = len(os.listdir("/proc/self/fd")), resident_bytes(), peak_bytes()
        for _ in range(CASES):
            load_format, payload = draw.choice(payloads)
            if draw.random() < 0.05:
                load_format = None if load_format == FLATTENED else FLATTENED
            outcomes[judged(damaged(draw, payload), load_format=load_format)] += 1
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == descriptors
        assert resident_bytes() - memory < ROOM_BYTES
        # The peak of the process may have come before; it only ever grows.
        assert peak_bytes() - max(peak, memory) < ROOM_BYTES
    assert outcomes.total() == CASES
    assert outcomes[False] > CASES // 2
