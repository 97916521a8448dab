"""2 000 damaged payloads: each is refused with a reason, or is right. make test-long has more."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from hotswap.wire import FLATTENED
from tests.unit.wire.fuzzing import damaged, judged
from tests.unit.wire.originals import originals

pytestmark = pytest.mark.usefixtures("by_name", "no_segment_left")

CASES = 2000


def test_damaged_payloads_are_refused_or_right() -> None:
    draw = random.Random(7)
    outcomes: Counter[bool] = Counter()
    with originals() as payloads:
        for load_format, payload in payloads:
            # A list of handles alone can be accepted and not opened: there is no such device.
            judged(payload, load_format=load_format)
        for _ in range(CASES):
            load_format, payload = draw.choice(payloads)
            if draw.random() < 0.05:
                load_format = None if load_format == FLATTENED else FLATTENED
            outcomes[judged(damaged(draw, payload), load_format=load_format)] += 1
    assert outcomes.total() == CASES
    assert outcomes[False] > CASES // 2
    assert outcomes[True] > 0  # some damage hits what nobody looks at
