"""Staging costs one checkpoint of anonymous memory, and gives it back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hotswap.testing.checkpoints import make_checkpoint
from hotswap.testing.server import ServerProcess
from tests.process.bad_checkpoints import SECOND_SHARD
from tests.process.forked_server import ForkedServer
from tests.process.http_client import client_of
from tests.process.process_memory import AnonPeak, anon_bytes

pytestmark = pytest.mark.process

MIB = 2**20
# What Python, torch and the request itself may take meanwhile.
SLACK_BYTES = 24 * MIB


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two checkpoints of about 200 MiB in two shards."""
    root = tmp_path_factory.mktemp("big")
    return [
        make_checkpoint(
            root / f"{seed}",
            seed=seed,
            dtype=torch.bfloat16,
            hidden_size=1024,
            intermediate_size=4096,
            num_heads=8,
            num_layers=6,
            shards=2,
        )
        for seed in (1, 2)
    ]


def size_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*.safetensors"))


@pytest.fixture(params=["staged", "direct"])
def server(big: list[Path], request: pytest.FixtureRequest) -> Iterator[tuple[str, ServerProcess]]:
    arguments = ("--load-mode", request.param)
    with ForkedServer(big[0], *arguments) as process:
        yield request.param, process


async def test_at_most_one_checkpoint_more_and_back_again(
    server: tuple[str, ServerProcess], big: list[Path]
) -> None:
    mode, process = server
    checkpoint_bytes = size_bytes(big[0])
    assert checkpoint_bytes > 150 * MIB
    async with client_of(process.base_url) as client:
        await client.generate([1, 2, 3], 4)
        start_bytes = anon_bytes(process.pid)
        for number in (1, 0, 1):
            with AnonPeak(process.pid) as peak:
                await client.update(big[number])
            grown_bytes = peak.bytes - start_bytes
            if mode == "staged":
                assert grown_bytes > checkpoint_bytes // 2, "the peak was not seen"
                assert grown_bytes <= checkpoint_bytes + SLACK_BYTES
            else:
                assert grown_bytes <= SLACK_BYTES
            assert anon_bytes(process.pid) - start_bytes <= 64 * MIB


async def test_a_refused_update_gives_everything_back(
    server: tuple[str, ServerProcess], big: list[Path]
) -> None:
    _, process = server
    shard = big[1] / SECOND_SHARD
    whole = shard.stat().st_size
    async with client_of(process.base_url) as client:
        start_bytes = anon_bytes(process.pid)
        with shard.open("r+b") as opened:
            opened.truncate(whole - 1)
        with AnonPeak(process.pid) as peak:
            status, _ = await client.post("/update_weights_from_disk", model_path=str(big[1]))
        with shard.open("r+b") as opened:
            opened.truncate(whole)

        assert status == 400
        assert peak.bytes - start_bytes <= SLACK_BYTES, "read before the headers were checked"
        assert anon_bytes(process.pid) - start_bytes <= SLACK_BYTES
