"""slime's loop where copies are kept and weights are loaded in other ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotswap.stream import verify_local
from tests.process.forked_server import ForkedServer
from tests.process.http_client import client_of
from tests.process.stream_publisher import publisher
from tests.process.test_pull_loop import VERSIONS, Trainer, fresh, seen, under_load

# The server is another process: there is little to trace in this one.
pytestmark = [pytest.mark.process, pytest.mark.no_cover, pytest.mark.long]

ENCODINGS = ("xor", "gap", "overwrite")


@pytest.mark.parametrize("keep", ["two-copies", "log"])
async def test_ten_versions_under_load(a: Path, tmp_path: Path, keep: str) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    arguments = [
        *("--dialect", "sglang", "--pull-threads", "1", "--local-root", str(copies)),
        *("--local-checkpoint", keep, "--load-mode", "direct"),
    ]
    with ForkedServer(a, *arguments) as server:
        async with (
            client_of(server.base_url) as client,
            publisher(a, tmp_path / "source", tmp_path / "expected") as trains,
        ):
            trainer = Trainer(client, tmp_path / "source", copies / "local")
            async with under_load(client):
                await trainer.first_sync()
                live = await fresh(a)
                for version in range(1, VERSIONS + 1):
                    whole = await trains.publish(version, ENCODINGS[version % len(ENCODINGS)])
                    await trainer.pull(version)
                    assert await client.checksums() == live[0]
                    if version % 2:
                        # Nobody knows what is live any more: the next update reads everything.
                        await client.done("/update_weight_version", new_version="another")
                    await trainer.load(version)
                    live = await fresh(whole)
                    assert await seen(client) == live
            told = {reply["mode"] for reply in trainer.updates}
            assert told == {"full", "sparse"}
            assert verify_local(trainer.local).faults == ()
        assert server.exit_code is None, server.log
        assert "Traceback" not in server.log, server.log
