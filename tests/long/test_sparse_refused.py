"""Whatever else makes live weights differ, or what they are called: the next update loads all.

Over HTTP, on one server: a sparse commit, then each way once, then a pull of what is published
next. ``tests/unit/sparse/test_sparse_updates.py`` has the ways of the library.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hotswap_disk import DiskStrategy

from hotswap.client import AsyncClient
from hotswap.sparse.cache import PATCHES
from hotswap.testing.checkpoints import make_checkpoint
from tests.process.http_client import Client
from tests.process.in_process import load, serving
from tests.process.stream_publisher import Publisher, publisher
from tests.process.test_push_native import tensors_of

pytestmark = [pytest.mark.process, pytest.mark.long]

Way = Callable[[Client, str, Path], Awaitable[object]]


@pytest.fixture(autouse=True)
def patches() -> None:
    """None that other tests of this process have pulled."""
    PATCHES.clear()


async def _push(_: Client, url: str, directory: Path) -> None:
    async with AsyncClient(url) as pusher:
        await pusher.push(tensors_of(directory), version="pushed", transport="body")


async def _push_a_part(_: Client, url: str, directory: Path) -> None:
    name, tensor = next(iter(tensors_of(directory).items()))
    async with AsyncClient(url) as pusher:
        await pusher.push({name: tensor}, scope="partial", transport="body")


async def _push_in_a_session(client: Client, url: str, directory: Path) -> None:
    begun = await client.done("/hotswap/v1/begin")
    async with AsyncClient(url) as pusher:
        await pusher.push(tensors_of(directory), update_id=begun["update_id"], transport="body")
    await client.done("/hotswap/v1/commit", update_id=begun["update_id"])


async def _relabel(client: Client, _url: str, _directory: Path) -> None:
    await client.done("/update_weight_version", new_version="another", abort_all_requests=False)


async def _reset(client: Client, _url: str, _directory: Path) -> None:
    await client.done("/weights_checker", action="reset_tensors")


async def _let_go(client: Client, _url: str, _directory: Path) -> None:
    await client.done("/release_memory_occupation", tags=["weights"])
    await client.done("/resume_memory_occupation", tags=["weights"])


async def _load_elsewhere(client: Client, _url: str, directory: Path) -> None:
    await client.update(directory, weight_version="1")


async def _load_by_another_strategy(client: Client, _url: str, directory: Path) -> None:
    await client.update(directory, strategy="other", weight_version="1")


WAYS: tuple[Way, ...] = (
    *(_push, _push_a_part, _push_in_a_session, _relabel, _reset, _let_go),
    *(_load_elsewhere, _load_by_another_strategy),
)


class _Run:
    """A trainer, a server's client, and the local checkpoint between them."""

    def __init__(self, client: Client, trains: Publisher, source: Path, local: Path) -> None:
        self.client, self.trains = client, trains
        self.source, self.local = source, local
        self.version = 0
        self.newest = source

    async def step(self) -> str:
        """Publish, pull and load; how it was committed."""
        self.version += 1
        self.newest = await self.trains.publish(self.version, "gap")
        await self.client.done(
            "/pull_weights",
            local_checkpoint_dir=str(self.local),
            source_dir=str(self.source),
            target_version=self.version,
        )
        reply = await self.client.update(self.local, weight_version=str(self.version))
        return str(reply["mode"])


async def test_every_way_of_making_live_weights_differ(tmp_path: Path) -> None:
    a = make_checkpoint(tmp_path / "a", seed=1)
    source, local = tmp_path / "source", tmp_path / "local"
    async with (
        publisher(a, source, tmp_path / "expected") as trains,
        serving(load(a), model=str(a), strategies={"other": DiskStrategy()}) as server,
    ):
        client, url = server.client, str(server.client.http.base_url)
        run = _Run(client, trains, source, local)
        await run.step()
        for way in WAYS:
            assert await run.step() == "sparse", way.__name__
            await way(client, url, a)
            assert await run.step() == "full", way.__name__
            live = await client.checksums()
        # Said to be done, and nothing is: that leaves weights what they were.
        await client.done("/post_process_weights", post_process_quantization=True)
        assert await run.step() == "sparse"
        live = await client.checksums()
        await client.update(run.newest)
        assert await client.checksums() == live
