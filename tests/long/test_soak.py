"""500 updates under load: nothing is lost and nothing grows (O5)."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from hotswap.testing.checkpoints import make_labelled_checkpoint
from hotswap.testing.server import ServerProcess
from tests.process.http_client import Client, Streams, client_of
from tests.process.in_process import load, serving
from tests.process.process_memory import anon_bytes, descriptors, threads
from tests.process.update_routes import MODES, ROUTES, Delivery, deliver

pytestmark = [pytest.mark.process, pytest.mark.long]

WARM_UPS, UPDATES, CLIENTS, TOKENS = 20, 500, 6, 40
GROWTH_BYTES = 20 * 2**20
WORKER_THREADS = 4


@pytest.fixture
def labelled(tmp_path: Path) -> list[Path]:
    return [make_labelled_checkpoint(tmp_path / f"{label}", label=label) for label in range(2)]


@dataclass(slots=True, kw_only=True)
class Soak:
    """Random updates over every route, under clients that never stop asking."""

    client: Client
    labelled: list[Path]
    draw: random.Random
    counts: Counter[str]
    number: int = 0

    async def run(self, updates: int) -> None:
        """Some updates; every request that was asked meanwhile has ended when it returns."""
        stop = asyncio.Event()
        async with Streams(self.client) as streams:
            clients = [asyncio.ensure_future(self._ask(streams, stop)) for _ in range(CLIENTS)]
            try:
                for _ in range(updates):
                    await self._update()
            finally:
                stop.set()
                await self.client.resume()
            await asyncio.gather(*clients)

    async def _ask(self, streams: Streams, stop: asyncio.Event) -> None:
        while not stop.is_set():
            prompt = [self.draw.randrange(256) for _ in range(self.draw.randrange(1, 30))]
            stream = streams.start(prompt, TOKENS)
            reply = await stream.finished()
            ended = reply["meta_info"]["finish_reason"]["type"]
            self.counts[ended] += 1
            assert ended in ("length", "abort")
            for span in reply["meta_info"]["weight_versions"]:
                labels = {token % 2 for token in reply["output_ids"][span["start"] : span["end"]]}
                assert labels == {int(span["version"]) % 2}

    async def _update(self) -> None:
        self.number += 1
        paused, mode = self.draw.random() < 0.5, self.draw.choice(MODES)
        bad = self.draw.random() < 0.15
        directory = self.labelled[self.number % 2]
        delivery = Delivery(
            directory=directory.parent / "none" if bad else directory,
            version=str(self.number),
            flush_cache=self.draw.random() < 0.7,
            pause_mode=None if paused else mode,
        )
        if paused:
            await self.client.pause(mode)
        status, reply = await deliver(self.client, self.draw.choice(ROUTES), delivery)
        # Frozen requests hold KV, and a flush beside them is a clean refusal.
        assert status == (400 if bad else 200), reply
        self.counts["refused" if bad else "committed"] += 1
        if paused:
            await self.client.resume()
        if bad:
            self.number += 1  # the next good one has to have this one's label again


Measure = Callable[[], Awaitable[list[int]]]


async def rested(measure: Measure) -> list[int]:
    """The least of each number over 25 seconds: hypercorn lets go of a connection that
    its client has closed when the 20 of its keep-alive are over."""
    seen = await measure()
    for _ in range(250):
        # What is waited for happens in another process, and tells nobody.
        await asyncio.sleep(0.1)
        gc.collect()
        seen = [min(pair) for pair in zip(seen, await measure(), strict=True)]
    return seen


def assert_flat(before: list[int], after: list[int]) -> None:
    """Descriptors and tasks as they were; of worker threads, which are kept for reuse, as
    many as were ever busy at once. One that leaks with every update would be 500."""
    slack = [0, WORKER_THREADS, 0]
    grown = [now - then for now, then in zip(after, before, strict=True)]
    assert all(by <= most for by, most in zip(grown, slack, strict=True)), (before, after)


@asynccontextmanager
async def soak(url: str, labelled: list[Path], seed: int) -> AsyncIterator[Soak]:
    async with client_of(url) as client:
        await client.update(labelled[0], weight_version="0", pause_mode="abort")
        yield Soak(client=client, labelled=labelled, draw=random.Random(seed), counts=Counter())


@pytest.mark.parametrize("mode", ["staged", "direct"])
async def test_a_server_process_stays_as_it_is(
    labelled: list[Path], mode: str, record_property: Callable[[str, object], None]
) -> None:
    arguments = ("--while-paused", "hold", "--load-mode", mode)
    with ServerProcess(labelled[0], *arguments, environ={"OMP_NUM_THREADS": "1"}) as server:
        pid = server.pid

        async with client_of(server.base_url) as watcher:

            async def held() -> list[int]:
                tasks: int = (await watcher.state())["tasks"]
                return [descriptors(pid), threads(pid), tasks]

            async with soak(server.base_url, labelled, 1) as warm_up:
                await warm_up.run(WARM_UPS)
            before, start_bytes = await rested(held), anon_bytes(pid)
            async with soak(server.base_url, labelled, 2) as main:
                await main.run(UPDATES)
            after, end_bytes = await rested(held), anon_bytes(pid)

        assert server.exit_code is None
        assert "Traceback" not in server.log
    for name, count in main.counts.items():
        record_property(name, count)
    record_property("growth_bytes", end_bytes - start_bytes)
    record_property("descriptors, threads, tasks", f"{before} then {after}")
    assert main.counts["committed"] + main.counts["refused"] == UPDATES
    assert main.counts["length"] > CLIENTS
    assert_flat(before, after)
    assert end_bytes - start_bytes <= GROWTH_BYTES


@pytest.mark.parametrize("mode", ["staged", "direct"])
async def test_tasks_threads_and_descriptors_stay(
    labelled: list[Path], mode: str, record_property: Callable[[str, object], None]
) -> None:
    """In this process, where the event loop can be looked into."""

    async def held() -> list[int]:
        fds = descriptors(os.getpid())
        return [fds, threading.active_count(), len(asyncio.all_tasks())]

    async with serving(load(labelled[0]), while_paused="hold", load_mode=mode) as server:
        url = str(server.client.http.base_url)
        async with soak(url, labelled, 3) as warm_up:
            await warm_up.run(WARM_UPS)
        before = await rested(held)
        async with soak(url, labelled, 4) as main:
            await main.run(UPDATES)
        after = await rested(held)
        assert server.controller.queue.idle
        assert server.engine.in_flight.total == 0
    record_property("descriptors, threads, tasks", f"{before} then {after}")
    assert_flat(before, after)
