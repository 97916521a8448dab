"""Two servers of one host that pull into one log: each serves every version that was published,
while the log is written into the files behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hotswap.stream import survey_local, verify_local
from hotswap.stream.append import LogLimits
from hotswap.testing.server import ServerProcess
from tests.process.forked_server import ForkedServer
from tests.process.http_client import LIMIT_S, Client, client_of
from tests.process.stream_publisher import publisher
from tests.process.test_pull_log import Trainer, fresh, seen

# The servers are other processes: there is little to trace in this one.
pytestmark = [pytest.mark.process, pytest.mark.no_cover, pytest.mark.long]

VERSIONS = 10
ENCODINGS = ("xor", "gap", "overwrite")
LONG = LogLimits().half().versions


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """Where pulls may write."""
    (tmp_path / "copies").mkdir()
    return tmp_path / "copies"


@pytest.fixture
def servers(a: Path, copies: Path) -> Iterator[list[ServerProcess]]:
    """Two, each with a compactor of its own."""
    arguments = ("--local-checkpoint", "log", "--local-root", str(copies), "--pull-threads", "1")
    with ExitStack() as stack:
        started = [stack.enter_context(ForkedServer(a, *arguments)) for _ in range(2)]
        yield started
        for process in started:
            assert process.exit_code is None, process.log
            assert "Traceback" not in process.log, process.log
            assert "its log stays beside its files" not in process.log, process.log


async def settled(local: Path) -> None:
    """Nothing is long enough to be written into the files any more."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            if len(survey_local(local).log_versions) < LONG:
                return
            await asyncio.sleep(0.05)


async def test_both_serve_what_was_published(
    servers: list[ServerProcess], a: Path, tmp_path: Path, copies: Path
) -> None:
    source, local = tmp_path / "source", copies / "local"
    async with (
        client_of(servers[0].base_url) as one,
        client_of(servers[1].base_url) as other,
        publisher(a, source, tmp_path / "expected") as trains,
    ):
        clients: list[Client] = [one, other]
        trainers = [Trainer(client, source, local) for client in clients]
        replies = await asyncio.gather(*(trainer.pull(0) for trainer in trainers))
        assert sorted(reply["mode"] for reply in replies) == ["noop", "seed"]
        written = 0
        for version in range(1, VERSIONS + 1):
            whole = await trains.publish(version, ENCODINGS[version % len(ENCODINGS)])
            replies = await asyncio.gather(*(trainer.pull(version) for trainer in trainers))
            assert [reply["local_version"] for reply in replies] == [version] * 2
            assert [reply["mode"] for reply in replies].count("noop") == 1
            await asyncio.gather(*(trainer.update(version) for trainer in trainers))
            expected = await fresh(whole)
            for client in clients:
                assert await seen(client) == expected
            plain = survey_local(local).plain_version
            assert plain is not None
            assert written <= plain <= version
            written = plain
        await settled(local)
        assert survey_local(local).plain_version
        assert survey_local(local).version == VERSIONS
        assert verify_local(local).faults == ()
        await asyncio.gather(*(trainer.update(VERSIONS) for trainer in trainers))
        for client in clients:
            assert await seen(client) == expected
        assert await fresh(local) == expected
