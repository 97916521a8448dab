"""kill -9 in the middle of an update: the directories are untouched, a new server serves."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
import torch

from hotswap.testing.checkpoints import make_checkpoint
from hotswap.testing.server import ServerProcess
from tests.process.evidence import Evidence, assert_equal
from tests.process.http_client import Client, Streams, client_of

pytestmark = [pytest.mark.process, pytest.mark.long]

# Seconds after the update was sent. It takes a few hundred milliseconds.
DELAYS_S = (0.0, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("pair")
    return [
        make_checkpoint(
            root / f"{seed}",
            seed=seed,
            dtype=torch.bfloat16,
            hidden_size=512,
            intermediate_size=2048,
            num_layers=6,
            shards=2,
        )
        for seed in (1, 2)
    ]


def contents(directory: Path) -> dict[str, tuple[int, str]]:
    """Modification time and digest of every file."""
    return {
        file.name: (file.stat().st_mtime_ns, sha256(file.read_bytes()).hexdigest())
        for file in directory.iterdir()
    }


async def update_for_ever(client: Client, pair: list[Path]) -> int:
    """One update after the other until the server is gone; how many were answered."""
    answered = 0
    try:
        while True:
            directory = pair[(answered + 1) % 2]
            await client.update(directory, pause_mode="retract")
            answered += 1
    except httpx.TransportError:
        return answered


@pytest.mark.parametrize("mode", ["staged", "direct"])
async def test_killed_at_any_moment(
    pair: list[Path], mode: str, record_property: Callable[[str, object], None]
) -> None:
    before = [contents(directory) for directory in pair]
    first: Evidence | None = None
    answered = 0
    for delay_s in DELAYS_S:
        # In bfloat16 greedy tokens depend on what else was in the batch.
        arguments = ("--load-mode", mode, "--dtype", "float32")
        with ServerProcess(pair[0], *arguments, environ={"OMP_NUM_THREADS": "1"}) as server:
            async with client_of(server.base_url) as client, Streams(client) as streams:
                seen = await Evidence.of(client)
                first = first or seen
                assert_equal(seen, first)
                streams.start([1, 2, 3], 1000)
                updates = asyncio.ensure_future(update_for_ever(client, pair))
                # The moment of the kill is what is varied.
                await asyncio.sleep(delay_s)
                os.kill(server.pid, signal.SIGKILL)
                answered += await asyncio.wait_for(updates, 30)
            assert server.stop() == -signal.SIGKILL
        assert [contents(directory) for directory in pair] == before
    record_property("kills", len(DELAYS_S))
    record_property("updates_answered_before_a_kill", answered)
