"""Checkpoints and servers that many tests of this directory share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import torch

from hotswap.testing.checkpoints import make_checkpoint
from hotswap.testing.server import ServerProcess
from tests.process.forked_server import ForkedServer
from tests.process.http_client import client_of
from tests.process.pushing import TRAINER
from tests.process.s3_store import s3_server
from tests.process.served import GR_SERVERS, Flavour, Served, server_number

HERE = Path(__file__).parent

# Servers and clients share few cores: threads that wait for each other burn them.
torch.set_num_threads(1)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of one shared server together, and trace one case of each test.

    pytest does the first by a parameter's place in its list, which ``with_pairs`` has lists of
    its own for. A server in this process takes two thirds again of its time while it is traced,
    and the other cases of a matrix reach the same lines.
    """
    items.sort(key=server_number)
    traced = set[str]()
    for item in items:
        name = item.nodeid.partition("[")[0]
        if item.path.parent == HERE and name in traced:
            item.add_marker("no_cover")
        traced.add(name)


@pytest.fixture(scope="session", autouse=True)
def trainer_ends() -> Iterator[None]:
    """The process that pushes come from, if there was any."""
    yield
    TRAINER.close()


@pytest.fixture(scope="session")
def a(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untied tiny Llama."""
    return make_checkpoint(tmp_path_factory.mktemp("a") / "a", seed=1)


@pytest.fixture(scope="session")
def b(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with other weights, in two shards."""
    return make_checkpoint(tmp_path_factory.mktemp("b") / "b", seed=2, shards=2)


@pytest.fixture(scope="session", params=GR_SERVERS)
def server(request: pytest.FixtureRequest, a: Path) -> Iterator[tuple[Flavour, ServerProcess]]:
    """One server a flavour, for as many tests as there are."""
    flavour: Flavour = request.param
    with ForkedServer(a, *flavour.flags) as process:
        yield flavour, process
        assert "Traceback" not in process.log, process.log


@pytest.fixture
async def served(server: tuple[Flavour, ServerProcess], a: Path) -> AsyncIterator[Served]:
    """The shared server, put back to where every test begins."""
    flavour, process = server
    async with client_of(process.base_url) as client:
        await client.resume()
        await client.update(a, weight_version="start", token_step=7, pause_mode="abort")
        yield Served(client=client, process=process, flavour=flavour)
        assert process.exit_code is None, process.log


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """Where an S3 server is that has ``s3_store.BUCKET``."""
    with s3_server() as endpoint:
        yield endpoint
