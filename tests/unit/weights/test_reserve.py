"""Memory that an update finds, and gives back."""

from __future__ import annotations

import os

import pytest

from hotswap.weights.memory import Memory
from hotswap.weights.reserve import Reserve
from tests.process.process_memory import anon_bytes

MIB = 2**20


def test_it_is_there_but_for_as_long_as_it_is_lent() -> None:
    reserve = Reserve(tensors=256)
    held = anon_bytes(os.getpid())
    with reserve.lent():
        with reserve.lent():
            assert repr(reserve) == f"<Reserve {MIB} bytes lent>"
            lent = anon_bytes(os.getpid())
        assert repr(reserve) == f"<Reserve {MIB} bytes lent>"
    assert repr(reserve) == f"<Reserve {MIB} bytes>"
    assert held - lent > MIB // 2
    assert anon_bytes(os.getpid()) - lent > MIB // 2


def test_a_body_that_fails_gives_it_back() -> None:
    reserve = Reserve(tensors=768)
    with pytest.raises(OSError, match="gone"), reserve.lent():
        raise OSError("gone")
    assert repr(reserve) == f"<Reserve {2 * MIB} bytes>"


def test_a_system_without_the_memory_is_no_reason_to_fail() -> None:
    reserve = Reserve(tensors=2**46)
    with reserve.lent():
        pass
    assert repr(reserve).endswith(" lent>")


def test_memory_that_was_closed_cannot_be_touched() -> None:
    memory = Memory(64)
    memory.close()
    with pytest.raises(ValueError, match="touch it before it is closed"):
        memory.touch()
