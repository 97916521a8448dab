"""A server whose pulls keep versions beside the files: what it serves is what was published."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from hotswap.cli import main
from hotswap.http.served import Served
from hotswap.sparse.cache import PATCHES
from hotswap.stream import Keep, pull, survey_local
from hotswap.stream.layout import directory_of
from tests.process.http_client import Client
from tests.process.in_process import InProcess, load, serving
from tests.process.stream_publisher import publisher
from tests.tiers import mostly_long

pytestmark = pytest.mark.process

ENCODINGS = ("xor", "gap", "overwrite", "gap")
TOKENS = 6

Seen = tuple[dict[str, str], list[list[int]]]


async def seen(client: Client) -> Seen:
    return await client.checksums(), await client.greedy([[5, 6, 7]], TOKENS)


async def fresh(directory: Path) -> Seen:
    """What a server shows that was started on ``directory``."""
    async with serving(load(directory)) as started:
        return await seen(started.client)


@dataclass(frozen=True, slots=True)
class Trainer:
    """Asks for pulls into ``local`` and for updates from it."""

    client: Client
    source: Path
    local: Path

    async def pull(self, version: int) -> Any:
        return await self.client.done(
            "/pull_weights",
            local_checkpoint_dir=str(self.local),
            source_dir=str(self.source),
            target_version=version,
        )

    async def update(self, version: int, **fields: object) -> Any:
        return await self.client.update(self.local, weight_version=str(version), **fields)

    @property
    def files(self) -> dict[str, tuple[int, int]]:
        """Inode and time of the last write of each file that is not the pulls' own."""
        found = [path for path in self.local.iterdir() if path.is_file()]
        return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}


def leave_logs(server: InProcess) -> None:
    """However long a test takes: nothing is written into the files in the background."""
    served: Served = server.app.state.served
    served.puller._compactor.stop()


def written(source: Path, version: int) -> int:
    return sum(path.stat().st_size for path in directory_of(source, version).iterdir())


@pytest.mark.parametrize("load_mode", mostly_long(["staged", "direct"], but=["staged"]))
async def test_it_serves_every_version_and_leaves_the_files_alone(
    a: Path, tmp_path: Path, load_mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    PATCHES.clear()
    source, local = tmp_path / "source", tmp_path / "local"
    async with (
        publisher(a, source, tmp_path / "expected") as trains,
        serving(load(a), model=str(a), local_checkpoint="log", load_mode=load_mode) as server,
    ):
        trainer = Trainer(server.client, source, local)
        leave_logs(server)
        assert (await trainer.pull(0))["mode"] == "seed"
        await trainer.update(0)
        files = trainer.files
        for version, encoding in enumerate(ENCODINGS, start=1):
            expected = await fresh(await trains.publish(version, encoding))
            reply = await trainer.pull(version)
            assert (reply["mode"], reply["local_version"]) == ("log", version)
            assert reply["written_bytes"] <= 1.5 * written(source, version)
            assert trainer.files == files
            if version % 3 == 0:
                # Nobody knows what is live: the whole checkpoint is read, with its log.
                await server.client.done("/update_weight_version", new_version="another")
            elif version % 3 == 1:
                # As when another process has pulled: the log says what changed.
                PATCHES.clear()
            told = await trainer.update(version)
            assert told["mode"] == ("full" if version % 3 == 0 else "sparse")
            assert await seen(server.client) == expected
        shown = (await server.client.http.get("/metrics")).text
        assert f"hotswap_log_versions {len(ENCODINGS)}.0" in shown
        size = sum(path.stat().st_size for path in (local / ".weight_sync" / "log").iterdir())
        assert f"hotswap_log_bytes {float(size)}" in shown
        state = json.loads((local / ".weight_sync" / "state.json").read_text())
        assert state["version"] == "000000"
        assert main(["materialize", str(local), "--threads", "1"]) == 0
        assert f"version {len(ENCODINGS)} (fold" in capsys.readouterr().out
        assert trainer.files.keys() == files.keys()
        assert await fresh(local) == expected
        await trainer.update(len(ENCODINGS))
        assert await seen(server.client) == expected


@pytest.mark.long
async def test_a_log_that_does_not_give_the_bytes_is_refused_and_nothing_is_touched(
    a: Path, tmp_path: Path
) -> None:
    PATCHES.clear()
    source, local = tmp_path / "source", tmp_path / "local"
    async with (
        publisher(a, source, tmp_path / "expected") as trains,
        serving(load(a), model=str(a), local_checkpoint="log") as server,
    ):
        trainer = Trainer(server.client, source, local)
        leave_logs(server)
        await trainer.pull(0)
        for version in (1, 2):
            expected = await trains.publish(version, "gap")
        await trainer.pull(1)
        await trainer.update(1)
        before = await seen(server.client)
        await trainer.pull(2)
        PATCHES.clear()  # else what was pulled is written, and the log not read
        log = local / ".weight_sync" / "log"
        file = log / "000002.safetensors"
        whole = file.read_bytes()
        file.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        told, reply = await server.client.post(
            "/update_weights_from_disk", model_path=str(local), weight_version="2"
        )
        assert told != 200
        assert "do not give the bytes that were published" in str(reply)
        assert await seen(server.client) == before
        os.truncate(file, 50)
        told, reply = await server.client.post(
            "/update_weights_from_disk", model_path=str(local), weight_version="2"
        )
        assert told != 200
        assert "is not the log that the last pull left" in str(reply)
        assert await seen(server.client) == before
        # The next pull sees that, and makes the copy anew.
        assert (await trainer.pull(2))["mode"] == "reseed"
        await trainer.update(2)
        assert await seen(server.client) == await fresh(expected)


async def test_a_push_of_a_directory_brings_what_it_holds(a: Path, tmp_path: Path) -> None:
    source, local = tmp_path / "source", tmp_path / "local"
    async with (
        publisher(a, source, tmp_path / "expected") as trains,
        serving(load(a)) as server,
    ):
        expected = await trains.publish(1, "gap")
        for version in (0, 1):
            pull(local, source, version, base_dir=a, threads=1, keep=Keep.LOG)
        assert survey_local(local).plain_version == 0
        url = str(server.client.http.base_url)
        pushed = await anyio.to_thread.run_sync(main, ["push", str(local), "--url", url])
        assert pushed == 0
        assert await seen(server.client) == await fresh(expected)
        # Whoever starts on it loads the same.
        assert await fresh(local) == await fresh(expected)
