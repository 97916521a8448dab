"""The strategy delta-pull in a server: clients that leave, aborts, hooks that hang, news."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hotswap_delta_pull import DeltaPullStrategy

from hotswap.plugin_hooks import PreReadHook
from hotswap.pre_read import pull_pre_read
from hotswap.pulls import Puller, on_the_loop
from hotswap.stream import PreRead
from hotswap.stream.recorded import RecordedBase
from hotswap.testing.asgi_call import AsgiCall
from hotswap.weights.roots import Roots
from tests.process.http_client import LIMIT_S, Client, Streams
from tests.process.in_process import InProcess, load, serving
from tests.process.published_checkpoints import publish_checkpoints

pytestmark = pytest.mark.process

UPDATE = "/update_weights_from_disk"


class Gate:
    """A pre-read that waits on the pull's thread until it is told to go on."""

    def __init__(self) -> None:
        self.looks: list[tuple[str, int]] = []
        self.arrived: threading.Event = threading.Event()
        self.released: threading.Event = threading.Event()

    def __call__(self, source: Path, target: int) -> None:
        self.looks.append((source.name, target))
        self.arrived.set()
        assert self.released.wait(LIMIT_S)

    async def until_arrived(self) -> None:
        assert await asyncio.to_thread(self.arrived.wait, LIMIT_S)


@pytest.fixture(scope="module")
def source(a: Path, b: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 1 is ``b``, version 2 ``a`` again."""
    return publish_checkpoints(tmp_path_factory.mktemp("stream") / "s", [a, b, a])


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    (tmp_path / "copies").mkdir()
    return tmp_path / "copies"


@asynccontextmanager
async def served(
    a: Path, copies: Path, pre_read: PreRead | None = None
) -> AsyncIterator[InProcess]:
    roots = Roots.of([copies])
    puller = Puller(RecordedBase.of(a), local_allowed=roots, threads=1, pre_read=pre_read)
    strategies = {"delta-pull": DeltaPullStrategy(puller, roots=roots)}
    async with serving(load(a), strategies=strategies, model=str(a)) as one:
        yield one


def asked(source: Path, version: int, **fields: object) -> dict[str, object]:
    told = {"model_path": str(source), "weight_version": str(version), "strategy": "delta-pull"}
    return {**told, **fields}


async def both_checksums(client: Client, a: Path, b: Path) -> list[dict[str, str]]:
    """Of ``a`` and of ``b``, which is then not live any more."""
    await client.update(b)
    of_b = await client.checksums()
    await client.update(a)
    return [await client.checksums(), of_b]


async def pulls_told(client: Client) -> list[dict[str, object]]:
    _, listed = await client.get("/hotswap/v1/events?stream=false&after=0")
    return [event for event in listed["events"] if event["event"] == "pull"]


async def counted(client: Client) -> dict[str, float]:
    text = (await client.call("GET", "/metrics")).text
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line[:1] != "#"]
    return {name: float(value) for name, value in lines if name.startswith("hotswap_pull")}


async def test_its_pulls_are_counted_and_told_with_those_of_the_route(
    a: Path, b: Path, source: Path, copies: Path, tmp_path: Path
) -> None:
    async with served(a, copies) as one:
        client = one.client
        of = await both_checksums(client, a, b)
        for version in (1, 2, 2, 1):
            await client.done(UPDATE, **asked(source, version))
            assert await client.checksums() == of[version % 2]
        fields = {"source_dir": str(source), "target_version": 1}
        await client.done("/pull_weights", local_checkpoint_dir=str(tmp_path / "x"), **fields)
        status, _ = await client.post(UPDATE, **asked(source, 9))
        assert status == 409
        shown = await counted(client)
        modes = {
            mode: shown[f'hotswap_pulls_total{{mode="{mode}",outcome="done"}}']
            for mode in ("seed", "delta", "reseed")
        }
        assert modes == {"seed": 2, "delta": 1, "reseed": 1}
        assert shown['hotswap_pulls_total{mode="none",outcome="source_not_ready"}'] == 1
        assert shown["hotswap_pulls_in_progress"] == 0
        assert shown["hotswap_pull_written_bytes_total"] > 0
        ends = Counter(event["pull"] for event in await pulls_told(client) if "mode" in event)
        assert ends == dict.fromkeys((1, 2, 3, 4), 1)


def cut(copies: Path) -> None:
    (weights,) = copies.glob("*/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:1000])


async def test_a_copy_that_was_damaged_is_made_anew(
    a: Path, b: Path, source: Path, copies: Path
) -> None:
    async with served(a, copies) as one:
        of = await both_checksums(one.client, a, b)
        await one.client.done(UPDATE, **asked(source, 1))
        for _ in range(2):
            await asyncio.to_thread(cut, copies)
            await one.client.done(UPDATE, **asked(source, 1))
            assert await one.client.checksums() == of[1]


async def test_the_hook_runs_before_each_look_and_none_for_the_base(
    a: Path, source: Path, copies: Path
) -> None:
    gate = Gate()
    gate.released.set()
    async with served(a, copies, gate) as one:
        for version in (0, 1, 1, 2):
            await one.client.done(UPDATE, **asked(source, version))
        assert gate.looks == [("s", 1), ("s", 1), ("s", 2)]


async def test_a_client_that_leaves_while_it_pulls(
    a: Path, b: Path, source: Path, copies: Path
) -> None:
    gate = Gate()
    async with served(a, copies, gate) as one:
        of = await both_checksums(one.client, a, b)
        async with AsgiCall(one.app, "POST", UPDATE, asked(source, 1)) as call:
            await gate.until_arrived()
            call.disconnect()
            # Serving all the while.
            assert len((await one.client.greedy([[1, 2, 3]], 4))[0]) == 4
            gate.released.set()
            assert await call.finished() == []
        assert await one.client.checksums() == of[0]
        assert (await one.client.state())["state"] == "serving"
        assert (await counted(one.client))["hotswap_pulls_in_progress"] == 0
        # What it had begun was brought to its end, and is nothing to pull for the next one.
        await one.client.done(UPDATE, **asked(source, 1))
        assert await one.client.checksums() == of[1]
        ends = [event["phase"] for event in await pulls_told(one.client)]
        assert (ends.count("received"), ends.count("cancelled"), ends.count("done")) == (1, 1, 0)


async def test_requests_are_aborted_once_the_version_is_there_and_not_before(
    a: Path, b: Path, source: Path, copies: Path
) -> None:
    gate = Gate()
    async with served(a, copies, gate) as one, Streams(one.client) as streams:
        of = await both_checksums(one.client, a, b)
        stream = streams.start([1, 2, 3], 2000)
        await stream.until(lambda seen: len(seen.tokens) > 2)
        body = asked(source, 1, pause_mode="abort")
        update = asyncio.ensure_future(one.client.done(UPDATE, **body))
        await gate.until_arrived()
        seen = len(stream.tokens)
        await stream.until(lambda now: len(now.tokens) > seen + 2)
        gate.released.set()
        reply = await update
        await stream.finished()
        assert reply["num_aborted_requests"] == 1
        assert stream.meta["finish_reason"]["type"] == "abort"
        assert await one.client.checksums() == of[1]


async def test_a_hook_that_hangs_rejects_the_update_and_nothing_else(
    a: Path, b: Path, source: Path, copies: Path
) -> None:
    mended = asyncio.Event()

    async def hangs(_source: str, _version: str | None) -> None:
        await mended.wait()

    hook = PreReadHook(name="mounts", call=hangs, timeout_s=0.2)
    async with served(a, copies, pull_pre_read([hook], run=on_the_loop)) as one:
        of = await both_checksums(one.client, a, b)
        for _ in range(2):
            status, reply = await one.client.post(UPDATE, **asked(source, 1))
            assert (status, reply["success"], reply["retryable"]) == (409, False, True)
            assert "mounts: pre-read hook took longer than 0.2 s" in reply["message"]
        assert await one.client.checksums() == of[0]
        assert (await one.client.state())["state"] == "serving"
        mended.set()
        await one.client.done(UPDATE, **asked(source, 1))
        assert await one.client.checksums() == of[1]
