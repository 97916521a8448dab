"""A swapped server equals a fresh one, and both equal transformers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from hotswap.testing.checkpoints import make_checkpoint
from tests.process.evidence import (
    NEW_TOKENS,
    PROMPTS,
    Evidence,
    assert_equal,
    assert_everything_differs,
)
from tests.process.forked_server import ForkedServer
from tests.process.http_client import Client, Streams, client_of
from tests.process.in_process import load, logits_of, serving
from tests.process.reference import Reference
from tests.tiers import mostly_long

pytestmark = pytest.mark.process

CASES = [(arch, tied) for arch in ("llama", "qwen2", "qwen3") for tied in (False, True)]
EVERY_TIME = [("llama", False), ("qwen3", True)]
IDS = [f"{arch}-{'tied' if tied else 'untied'}" for arch, tied in CASES]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two checkpoints of one model."""

    a: Path
    b: Path


@pytest.fixture(scope="module", params=mostly_long(CASES, but=EVERY_TIME), ids=IDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    arch, tied = request.param
    root = tmp_path_factory.mktemp(arch)
    return Pair(
        a=make_checkpoint(root / "a", arch=arch, tied=tied, seed=1),
        b=make_checkpoint(root / "b", arch=arch, tied=tied, seed=2, shards=3),
    )


@asynccontextmanager
async def server_on(directory: Path) -> AsyncIterator[Client]:
    with ForkedServer(directory) as server:
        async with client_of(server.base_url) as client:
            yield client
        assert server.exit_code is None, server.log


async def idle(client: Client, directory: Path) -> None:
    await client.update(directory)


async def paused(client: Client, directory: Path) -> None:
    await client.pause("retract")
    await client.done("/flush_cache")
    await client.update(directory, flush_cache=True)
    await client.resume()


async def paused_in_place(client: Client, directory: Path) -> None:
    await client.pause("in_place")
    await client.update(directory)
    await client.resume()


async def under_streams(client: Client, directory: Path) -> None:
    async with Streams(client) as streams:
        running = [streams.start(prompt, 100) for prompt in PROMPTS[:4]]
        for stream in running:
            await stream.has_tokens()
        reply = await client.update(directory, pause_mode="retract")
        for stream in running:
            meta = (await stream.finished())["meta_info"]
            assert meta["finish_reason"] == {"type": "length", "length": 100}
    assert reply["num_paused_requests"] == 4
    assert reply["num_aborted_requests"] == 0


Swap = Callable[[Client, Path], Awaitable[None]]
SWAPS: list[tuple[str, Swap]] = [
    ("b", idle),
    ("a", paused),
    ("b", paused_in_place),
    ("a", under_streams),
    ("b", under_streams),
]


async def test_a_swapped_server_equals_a_fresh_one_and_transformers(pair: Pair) -> None:
    fresh: dict[str, Evidence] = {}
    async with server_on(pair.b) as client:
        fresh["b"] = await Evidence.of(client)
    async with server_on(pair.a) as client:
        fresh["a"] = await Evidence.of(client)
        assert_everything_differs(fresh["a"], fresh["b"])
        for name, swap in SWAPS:
            await swap(client, getattr(pair, name))
            assert_equal(await Evidence.of(client), fresh[name])
        assert (await client.version())["weight_update_count"] == len(SWAPS)

    reference = Reference(pair.b)
    assert fresh["b"].tokens == [reference.greedy(prompt, NEW_TOKENS) for prompt in PROMPTS]


async def test_logits_equal_those_of_transformers_before_and_after_every_swap(pair: Pair) -> None:
    references = {"a": Reference(pair.a), "b": Reference(pair.b)}

    async with serving(load(pair.a)) as server:
        for name, swap in [("a", idle), *SWAPS]:
            await swap(server.client, getattr(pair, name))
            await server.client.pause("retract")
            for prompt in PROMPTS:
                seen, wanted = (
                    logits_of(server.engine.model, prompt),
                    references[name].logits(prompt),
                )
                assert (seen - wanted).abs().max().item() <= 1e-4
            await server.client.resume()
