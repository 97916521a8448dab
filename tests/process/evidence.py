"""What a server shows of its weights: every checksum, and greedy tokens of 20 prompts."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.process.http_client import Client

__all__ = ["NEW_TOKENS", "PROMPTS", "Evidence", "assert_equal", "assert_everything_differs"]

NEW_TOKENS = 16
# Follows from the configuration: the same for every checkpoint of one model.
_CONSTANT = {"model.rotary_emb.inv_freq"}


def _prompts(count: int) -> list[list[int]]:
    draw = random.Random(20)
    return [[draw.randrange(256) for _ in range(3 + at)] for at in range(count)]


PROMPTS = _prompts(20)
"""Of 3 to 22 tokens, all of them bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Two servers with equal evidence run the same weights."""

    checksums: dict[str, str]
    tokens: list[list[int]]

    @classmethod
    async def of(cls, client: Client) -> Evidence:
        """Ask a server that is serving."""
        return cls(
            checksums=await client.checksums(), tokens=await client.greedy(PROMPTS, NEW_TOKENS)
        )


def assert_equal(seen: Evidence, fresh: Evidence) -> None:
    """Raises: AssertionError naming the tensors, or the prompts, that differ."""
    assert seen.checksums.keys() == fresh.checksums.keys()
    torn = [name for name, sum_ in fresh.checksums.items() if seen.checksums[name] != sum_]
    assert not torn, f"tensors unlike those of a fresh server: {torn}"
    pairs = zip(seen.tokens, fresh.tokens, strict=True)
    other = [at for at, (one, two) in enumerate(pairs) if one != two]
    assert not other, f"prompts answered unlike a fresh server: {other}"


def assert_everything_differs(a: Evidence, b: Evidence) -> None:
    """A and B share no parameter and hardly an output: a swap that did nothing would show."""
    assert a.checksums.keys() == b.checksums.keys()
    same = {name for name, sum_ in a.checksums.items() if b.checksums[name] == sum_}
    assert same == _CONSTANT, same
    assert sum(one != two for one, two in zip(a.tokens, b.tokens, strict=True)) >= 18
