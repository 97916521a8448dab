"""A28: the trainer rewrites, truncates or deletes the directory; the live weights do not move."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hotswap_disk import DiskStrategy

from hotswap.seams import Stage
from hotswap.types import Bucket, Manifest, Placement, Update
from tests.process.evidence import PROMPTS, Evidence, assert_equal
from tests.process.forked_server import ForkedServer
from tests.process.fresh import fresh
from tests.process.http_client import Streams, client_of
from tests.process.in_process import load, serving
from tests.process.served import Served

pytestmark = pytest.mark.process


def _rewrite(directory: Path) -> None:
    """In place: whoever maps the file sees other weights."""
    for file in directory.glob("*.safetensors"):
        with file.open("r+b") as opened:
            opened.write(b"\xff" * file.stat().st_size)


def _truncate(directory: Path) -> None:
    """Whoever maps the file dies of SIGBUS at the next look."""
    for file in directory.iterdir():
        os.truncate(file, 0)


def _delete(directory: Path) -> None:
    shutil.rmtree(directory)


CRIMES: list[Callable[[Path], None]] = [_rewrite, _truncate, _delete]


def held_of(pid: int, directory: Path) -> list[str]:
    """Mappings and descriptors of a process that lie in ``directory``."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    descriptors: Iterator[str] = (
        os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()
    )
    return [line for line in (*maps, *descriptors) if str(directory) in line]


@pytest.mark.parametrize("crime", CRIMES)
async def test_a28_right_after_the_reply(
    served: Served, b: Path, tmp_path: Path, crime: Callable[[Path], None]
) -> None:
    client, given = served.client, tmp_path / "given"
    shutil.copytree(b, given)
    async with Streams(client) as streams:
        stream = streams.start(PROMPTS[0], 60)
        await stream.has_tokens()
        await client.update(given, weight_version="given", pause_mode="retract")
        assert held_of(served.process.pid, given) == []
        crime(given)
        await stream.finished()
    assert_equal(await Evidence.of(client), await fresh(b))


@pytest.mark.parametrize("crime", CRIMES)
async def test_a28_refused_updates_hold_nothing_either(
    served: Served, b: Path, tmp_path: Path, crime: Callable[[Path], None]
) -> None:
    given = tmp_path / "given"
    shutil.copytree(b, given)
    crime(given)
    status, _ = await served.client.post("/update_weights_from_disk", model_path=str(given))

    assert status == 400
    assert held_of(served.process.pid, given) == []
    assert (await served.client.version())["weight_version"] == "start"


async def test_a28_the_directory_that_the_server_booted_from(a: Path, tmp_path: Path) -> None:
    boot = tmp_path / "boot"
    shutil.copytree(a, boot)
    with ForkedServer(boot) as server:
        async with client_of(server.base_url) as client:
            assert held_of(server.pid, boot) == []
            for crime in CRIMES:
                crime(boot)
                assert_equal(await Evidence.of(client), await fresh(a))
        assert server.exit_code is None


class _SpoiledStage:
    """A stage whose files are spoiled once everything has been opened and checked."""

    def __init__(self, stage: Stage, spoil: Callable[[], None]) -> None:
        self._stage = stage
        self._spoil = spoil

    @property
    def manifest(self) -> Manifest:
        return self._stage.manifest

    def buckets(self) -> Iterable[Bucket]:
        self._spoil()
        return self._stage.buckets()


class _SpoiledStrategy:
    """The disk strategy, and a trainer that does not wait for the reply."""

    def __init__(self, crime: Callable[[Path], None]) -> None:
        self._crime = crime

    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        async with DiskStrategy().open(update, placement) as stage:
            yield _SpoiledStage(stage, lambda: self._crime(Path(update.source)))


@pytest.mark.parametrize("mode", ["staged", "direct"])
async def test_a28_truncated_between_the_check_and_the_read(
    a: Path, b: Path, tmp_path: Path, mode: str
) -> None:
    given = tmp_path / "given"
    shutil.copytree(b, given)
    spoiled = {"disk": _SpoiledStrategy(_truncate)}
    async with serving(load(a), strategies=spoiled, load_mode=mode) as server:
        before = await server.client.snapshot()
        status, reply = await server.client.post("/update_weights_from_disk", model_path=str(given))

        assert reply["success"] is False
        assert await server.client.version() == before.version
        if mode == "staged":
            assert status == 400
            assert await server.client.snapshot() == before
            assert_equal(await Evidence.of(server.client), await fresh(a))
        else:
            assert (status, reply["error"]["code"]) == (500, "update_failed")
            assert (await server.client.state())["state"] == "invalid"
            status, _ = await server.client.post("/generate", input_ids=[1])
            assert status == 503


async def test_a28_deleted_between_the_check_and_the_read(a: Path, b: Path, tmp_path: Path) -> None:
    """Open descriptors keep a deleted file readable: the update is whole."""
    given = tmp_path / "given"
    shutil.copytree(b, given)
    async with serving(load(a), strategies={"disk": _SpoiledStrategy(_delete)}) as server:
        await server.client.update(given)

        assert not given.exists()
        assert_equal(await Evidence.of(server.client), await fresh(b))
