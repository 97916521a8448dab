from __future__ import annotations

import pytest

from hotswap.closing import Closing
from hotswap.counted import counted


class Door(Closing):
    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_a_with_block_gets_the_object_and_closes_it() -> None:
    with Door() as door:
        assert door.closed == 0
    assert door.closed == 1


def test_an_error_closes_it_and_is_passed_on() -> None:
    door = Door()
    with pytest.raises(LookupError), door:
        raise LookupError
    assert door.closed == 1


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 versions"), (1, "1 version"), (2, "2 versions")]
)
def test_counted(number: int, said: str) -> None:
    assert counted(number, "version") == said
