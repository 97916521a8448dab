"""The limit of open descriptors that a server gives itself."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from hotswap.descriptors import MOST, raise_limit


@pytest.fixture(autouse=True)
def limits() -> Iterator[tuple[int, int]]:
    """The limits of this process, put back afterwards."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_low_soft_limit_is_raised_to_what_the_process_may_have(limits: tuple[int, int]) -> None:
    hard = limits[1]
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))

    assert raise_limit() == wanted
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (wanted, hard)


def test_a_limit_that_is_high_enough_stays(limits: tuple[int, int]) -> None:
    raised = raise_limit()

    assert raise_limit() == raised
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (raised, limits[1])


def test_a_system_that_refuses_keeps_its_limit(
    limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(which: int, to: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise the limit")

    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    with monkeypatch.context() as patched:
        patched.setattr(resource, "setrlimit", refuse)
        assert raise_limit() == 256
