"""Sparse commits as a client meets them: both dialects, every pause mode, beside a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from hotswap.sparse.cache import PATCHES
from tests.process.failing import watched
from tests.process.http_client import Client, Streams
from tests.process.in_process import InProcess, load, serving
from tests.process.stream_publisher import publisher

pytestmark = pytest.mark.process

MODES = (None, "abort", "retract", "in_place", "wait")
TOKENS = 6
PROMPT = [5, 6, 7]

Seen = tuple[dict[str, str], list[list[int]]]


@pytest.fixture(autouse=True)
def patches() -> None:
    """None that other tests of this process have pulled."""
    PATCHES.clear()


async def seen(client: Client) -> Seen:
    return await client.checksums(), await client.greedy([PROMPT], TOKENS)


@dataclass(frozen=True, slots=True)
class Published:
    """A stream on ``base``, and what a server shows that was started on each version."""

    base: Path
    source: Path
    fresh: Sequence[Seen]


@pytest.fixture(scope="module")
def published(a: Path, tmp_path_factory: pytest.TempPathFactory) -> Published:
    """A version for each mode."""
    folder = tmp_path_factory.mktemp("stream")

    async def publish() -> list[Seen]:
        found = []
        async with publisher(a, folder / "source", folder / "expected") as trains:
            for version, encoding in enumerate(["xor", "gap", "overwrite", "gap", "xor"], start=1):
                expected = await trains.publish(version, encoding)
                async with serving(load(expected)) as started:
                    found.append(await seen(started.client))
        return found

    return Published(base=a, source=folder / "source", fresh=asyncio.run(publish()))


async def pulled(server: InProcess, stream: Published, local: Path, version: int) -> None:
    await server.client.done(
        "/pull_weights",
        local_checkpoint_dir=str(local),
        source_dir=str(stream.source),
        target_version=version,
    )


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
async def test_every_mode_in_both_dialects(
    published: Published, tmp_path: Path, dialect: str
) -> None:
    local = tmp_path / "local"
    async with (
        serving(load(published.base), dialect=dialect, model=str(published.base)) as server,
        Streams(server.client) as streams,
    ):
        client = server.client
        await pulled(server, published, local, 0)
        assert (await client.update(local))["mode"] == "full"
        for version, mode in enumerate(MODES, start=1):
            await pulled(server, published, local, version)
            stream = None
            if mode is not None:
                stream = streams.start(PROMPT, 40)
                await stream.has_tokens()
            reply = await client.update(local, weight_version=str(version), pause_mode=mode)
            assert (reply["success"], reply["mode"], reply["load_mode"]) == (
                True,
                "sparse",
                "staged",
            )
            assert 0 < reply["elements_moved"] < 5000
            if stream is not None:
                await stream.finished()
            assert await seen(client) == published.fresh[version - 1]
        _, text = await server_metrics(server)
        assert 'hotswap_update_commits_total{mode="sparse"} 5.0' in text
        assert 'hotswap_update_commits_total{mode="full"} 1.0' in text
        assert "hotswap_patch_cache_bytes 0.0" in text


@pytest.mark.parametrize(("tags", "mode"), [(["kv_cache"], "sparse"), (None, "full")])
async def test_memory_that_was_let_go_meanwhile(
    published: Published, tmp_path: Path, tags: list[str] | None, mode: str
) -> None:
    local = tmp_path / "local"
    async with serving(load(published.base), model=str(published.base)) as server:
        client = server.client
        await pulled(server, published, local, 1)
        await client.update(local)
        await client.pause("abort")
        body = {} if tags is None else {"tags": tags}
        await client.done("/release_memory_occupation", **body)
        await pulled(server, published, local, 2)
        await client.done("/resume_memory_occupation", **body)
        assert (await client.update(local))["mode"] == mode
        await client.resume()
        assert await seen(client) == published.fresh[1]


async def server_metrics(server: InProcess) -> tuple[int, str]:
    reply = await server.client.call("GET", "/metrics")
    return reply.status_code, reply.text


@pytest.mark.parametrize(("dialect", "status"), [("gr", 500), ("sglang", 400)])
async def test_a_commit_that_fails_serves_on_with_what_was_there(
    published: Published, tmp_path: Path, dialect: str, status: int
) -> None:
    local, left = tmp_path / "local", list[RuntimeError]()

    def finish() -> None:
        if left:
            raise left.pop()

    loaded = watched(load(published.base), before_finish=finish)
    async with serving(loaded, dialect=dialect, model=str(published.base)) as server:
        client = server.client
        await pulled(server, published, local, 1)
        await client.update(local, weight_version="1")
        await pulled(server, published, local, 2)
        left.append(RuntimeError("injected"))
        told, reply = await client.post(
            "/update_weights_from_disk", model_path=str(local), weight_version="2"
        )
        assert told == status
        assert "every element was put back" in str(reply)
        assert (await client.version())["weight_version"] == "1"
        assert await seen(client) == published.fresh[0]
        reply = await client.update(local, weight_version="2")
        assert reply["mode"] == "full"
        assert await seen(client) == published.fresh[1]
