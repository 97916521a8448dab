"""Prompts that begin alike: computed once under one set of weights, and never across two."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hotswap.testing.checkpoints import make_checkpoint
from hotswap.testing.server import ServerProcess
from tests.process.forked_server import ForkedServer
from tests.process.http_client import Client, Streams, client_of
from tests.process.reference import Reference
from tests.process.update_routes import MODES

pytestmark = pytest.mark.process

SHARED, LEAST, NEW = 512, 480, 12
_DRAW = random.Random(512)
PREFIX = [_DRAW.randrange(256) for _ in range(SHARED)]
PROMPTS = [PREFIX + [_DRAW.randrange(256) for _ in range(5 + at)] for at in range(6)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("long")
    return [make_checkpoint(root / f"{seed}", seed=seed) for seed in (1, 2)]


@pytest.fixture(scope="module")
def server(pair: list[Path]) -> Iterator[ServerProcess]:
    arguments = ("--dtype", "float32", "--while-paused", "hold")
    with ForkedServer(pair[0], *arguments) as process:
        yield process
        assert process.exit_code is None, process.log


@pytest.fixture
async def client(server: ServerProcess, pair: list[Path]) -> AsyncIterator[Client]:
    async with client_of(server.base_url) as client:
        await client.resume()
        await client.update(pair[0], weight_version="0", pause_mode="abort")
        yield client


async def cached(client: Client, prompt: list[int], reference: Reference) -> int:
    """Generate, compare with transformers, and return how many tokens were known."""
    reply = await client.generate(prompt, NEW)
    assert reply["output_ids"] == reference.greedy(prompt, NEW)
    return int(reply["meta_info"]["cached_tokens"])


async def test_a_shared_prefix_is_computed_once(client: Client, pair: list[Path]) -> None:
    reference = Reference(pair[0])
    assert await cached(client, PROMPTS[0], reference) == 0
    for prompt in PROMPTS[1:]:
        assert await cached(client, prompt, reference) >= LEAST


@pytest.mark.parametrize("flush_cache", [True, False])
@pytest.mark.parametrize("mode", MODES)
async def test_nothing_of_the_old_weights_is_met(
    client: Client, pair: list[Path], mode: str, flush_cache: bool
) -> None:
    """Also beside a request that was frozen with KV of the old weights, and after its end."""
    old, new = Reference(pair[0]), Reference(pair[1])
    await cached(client, PROMPTS[0], old)
    async with Streams(client) as streams:
        frozen = streams.start(PROMPTS[1], 60)
        await frozen.has_tokens()
        await client.pause(mode)
        await client.update(pair[1], weight_version="1", flush_cache=flush_cache)
        await client.resume()
        known = await cached(client, PROMPTS[2], new)
        # A parked request computes the prefix anew, by the new weights: that may be shared.
        assert known == 0 or (mode == "retract" and known >= LEAST)
        assert await cached(client, PROMPTS[3], new) >= LEAST
        await frozen.finished()
    # What the frozen request has left behind is of two versions: nobody may have it.
    beyond = frozen.event["output_ids"][:20]
    reply = await client.generate(PROMPTS[1] + beyond, NEW)
    assert reply["output_ids"] == new.greedy(PROMPTS[1] + beyond, NEW)
