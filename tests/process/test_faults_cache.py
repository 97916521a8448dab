"""A2: a prefix computed with old weights is never used with new ones."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.process.http_client import Client, Streams
from tests.process.in_process import load, serving
from tests.process.served import Served, in_every_flavour
from tests.process.told import flushed
from tests.process.update_routes import EACH_ROUTE, MODES, Delivery, deliver

pytestmark = [
    pytest.mark.process,
    pytest.mark.parametrize("route", EACH_ROUTE),
    in_every_flavour,
]

TOKENS = 12
PROMPT = random.Random(2).choices(range(256), k=40)
_KNOWN: dict[tuple[Path, tuple[int, ...]], list[int]] = {}


async def cached(client: Client, prompt: list[int] = PROMPT) -> tuple[int, list[int]]:
    """How much of the prompt came from the cache, and the output."""
    reply = await client.generate(prompt, TOKENS)
    return reply["meta_info"]["cached_tokens"], reply["output_ids"]


async def fresh_output(directory: Path, prompt: list[int] = PROMPT) -> list[int]:
    """What a server that was started on it answers; a prompt is asked once."""
    known = (directory, tuple(prompt))
    if known not in _KNOWN:
        async with serving(load(directory)) as server:
            _KNOWN[known] = (await server.client.generate(prompt, TOKENS))["output_ids"]
    return _KNOWN[known]


async def warm_up(client: Client) -> list[int]:
    """The prompt twice: the second time its prefix is in the cache."""
    none, output = await cached(client)
    some, again = await cached(client)
    assert (none, again) == (0, output)
    assert some == len(PROMPT) - 1
    return output


async def flushes_one(served: Served) -> None:
    """A flush drops the one entry that there is."""
    entries = await flushed(served.client, served.dialect)
    assert entries == (1 if served.dialect == "gr" else None)
    assert (await served.client.get("/status"))[1]["cache"]["entries"] == 0


@pytest.mark.parametrize("mode", [None, *MODES])
async def test_a2_flushed_by_the_update(
    served: Served, b: Path, route: str, mode: str | None
) -> None:
    client = served.client
    old = await warm_up(client)
    if mode is not None:
        await client.pause(mode)
    status, reply = await deliver(client, route, Delivery(directory=b, flush_cache=True))
    # The two equal texts are one entry.
    assert (status, reply["flushed_cache"], reply["entries_cleared"]) == (200, True, 1)
    await client.resume()

    count, new = await cached(client)
    assert (count, new) == (0, await fresh_output(b))
    assert new != old
    # And the new prefix is cached as the old one was.
    assert await cached(client) == (len(PROMPT) - 1, new)


async def test_a2_flushed_afterwards(served: Served, b: Path, route: str) -> None:
    client = served.client
    await warm_up(client)
    await client.pause("retract")
    status, reply = await deliver(client, route, Delivery(directory=b, flush_cache=False))
    assert (status, reply["flushed_cache"], reply["entries_cleared"]) == (200, False, 0)
    await flushes_one(served)
    await client.resume()

    assert await cached(client) == (0, await fresh_output(b))


async def test_a2_not_flushed_at_all(served: Served, b: Path, route: str) -> None:
    """Documented: entries belong to the weight epoch that made them, flushed or not."""
    await warm_up(served.client)
    await deliver(served.client, route, Delivery(directory=b, flush_cache=False))

    assert await cached(served.client) == (0, await fresh_output(b))
    # What it dropped long ago is no part of what a flush drops now.
    await flushes_one(served)


@pytest.mark.parametrize("flush", [True, False])
async def test_a2_a_request_that_still_runs_puts_nothing_old_into_the_cache(
    served: Served, b: Path, route: str, flush: bool
) -> None:
    """Its KV is of A up to the pause, and frozen in place through update and flush."""
    client = served.client
    async with Streams(client) as streams:
        stream = streams.start(PROMPT, 200)
        await stream.has_tokens(3)
        await client.pause("in_place")
        status, _ = await deliver(client, route, Delivery(directory=b, flush_cache=flush))
        assert status == 200
        await client.resume()
        spans = (await stream.finished())["meta_info"]["weight_versions"]
        assert len(spans) == 2, "the request did not live through the update"

    assert await cached(client) == (0, await fresh_output(b))
    longer = PROMPT + stream.tokens[:50]
    count, output = await cached(client, longer)
    # What is shared with the request just served may be cached, and nothing beyond it.
    assert count <= len(PROMPT) + TOKENS
    assert output == await fresh_output(b, longer)


async def test_a2_same_weights_again(served: Served, a: Path, route: str) -> None:
    """Even an update to equal weights starts a new epoch."""
    old = await warm_up(served.client)
    await deliver(served.client, route, Delivery(directory=a, flush_cache=True))

    assert await cached(served.client) == (0, old)
