"""Reads of live weights in the middle of a commit: one set of weights, never half of two.

A client asks while the engine stands still in the middle of its writes. Between two
writes, or between a write that failed and the next attempt, the engine has time for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hotswap_disk import DiskStrategy

from hotswap.seams import Stage
from hotswap.types import Bucket, Manifest, Placement, Update
from tests.process.failing import Gate, watched
from tests.process.fresh import fresh
from tests.process.http_client import Client
from tests.process.in_process import InProcess, load, serving

pytestmark = pytest.mark.process

MODES = ["staged", "direct"]
AT = 9
"""The write before which the engine stands still."""

NAME = "model.layers.1.mlp.gate_up_proj.weight"


class _TensorByTensor:
    """The disk strategy, with as many buckets as there are tensors."""

    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        async with DiskStrategy().open(update, placement) as stage:
            yield _ManyBuckets(stage)


class _ManyBuckets:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    @property
    def manifest(self) -> Manifest:
        return self._stage.manifest

    def buckets(self) -> Iterator[Bucket]:
        for bucket in self._stage.buckets():
            for item in bucket:
                yield [item]


@asynccontextmanager
async def standing_in_a_commit(
    a: Path, mode: str, *, fails: bool = False
) -> AsyncIterator[tuple[InProcess, Gate]]:
    """A server whose engine stands still before write ``AT``, which then ``fails`` or not."""
    gate = Gate()

    def before(at: int) -> None:
        if at == AT:
            gate.wait()
            if fails:
                raise RuntimeError("injected")

    loaded = watched(load(a), before_write=before)
    strategies = {"disk": _TensorByTensor()}
    async with serving(loaded, strategies=strategies, load_mode=mode) as server:
        yield server, gate


async def rows(client: Client, name: str = NAME) -> Any:
    """All of one weight."""
    return await client.done("/get_weights_by_name", name=name, truncate_size=10_000)


async def asked_meanwhile(server: InProcess, gate: Gate, b: Path) -> list[Any]:
    """Update, read everything in the middle of it, and return what the reads said."""
    client = server.client
    update = asyncio.create_task(client.post("/update_weights_from_disk", model_path=str(b)))
    await gate.reached()
    reads = [asyncio.create_task(work) for work in (client.checksums(), rows(client))]
    reads += [asyncio.create_task(client.post("/weights_checker", action="compare"))]
    await client.until_status(lambda _status: server.controller.writes.waiting == len(reads))
    gate.open()
    status, _ = await update
    assert status in (200, 500)
    return list(await asyncio.gather(*reads))


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("mode", MODES)
async def test_a_read_in_the_middle_of_a_commit_sees_the_end_of_it(
    a: Path, b: Path, mode: str, fails: bool
) -> None:
    async with standing_in_a_commit(a, mode, fails=fails) as (server, gate):
        client = server.client
        await client.done("/weights_checker", action="snapshot")
        old = await rows(client)
        seen, weight, (compared, _) = await asked_meanwhile(server, gate, b)

        torn = fails and mode == "direct"
        assert (await client.state())["facts"]["weights"] == ("torn" if torn else "whole")
        assert (seen, weight) == (await client.checksums(), await rows(client))
        assert compared == 400
        status, reply = await client.post("/weights_checker", action="checksum")
        assert (status, "not whole: torn" in reply["message"]) == (200, torn)
        if not torn:
            assert seen == (await fresh(b)).checksums
            assert weight != old


async def test_a_read_before_the_first_write_sees_the_old_weights(a: Path, b: Path) -> None:
    """A long read is over before the weights change, and not half way."""
    async with standing_in_a_commit(a, "staged") as (server, gate):
        client = server.client
        # The commit that comes next stands behind this read, on the engine's thread.
        seen, _ = await asyncio.gather(server.engine.checksums(), commit_of(server, gate, b))
        assert seen == (await fresh(a)).checksums
        assert await client.checksums() == (await fresh(b)).checksums


async def commit_of(server: InProcess, gate: Gate, b: Path) -> None:
    gate.open()
    await server.client.update(b)
