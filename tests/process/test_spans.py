"""Each token names the weights that made it: spans are exactly right under load."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from hotswap.testing.checkpoints import make_labelled_checkpoint
from hotswap.testing.server import ServerProcess
from tests.process.evidence import PROMPTS
from tests.process.forked_server import ForkedServer
from tests.process.http_client import LIMIT_S, Client, Stream, Streams, client_of

# The server is another process: there is little to trace in this one.
pytestmark = [pytest.mark.process, pytest.mark.no_cover]

STREAMS, SWAPS = 16, 20
# Of different lengths, or all of them might end at once and no request live through a swap.
TOKENS = [60 + 6 * at for at in range(STREAMS)]


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("labelled")
    return [make_labelled_checkpoint(root / f"{label}", label=label) for label in range(2)]


@pytest.fixture(scope="module")
def server(labelled: list[Path]) -> Iterator[ServerProcess]:
    """Serves label 0 at the start; requests that meet a closed gate wait."""
    with ForkedServer(labelled[0], "--while-paused", "hold") as running:
        yield running
        assert running.exit_code is None, running.log


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    async with client_of(server.base_url) as client:
        yield client


async def paused(client: Client, directory: Path, version: str, mode: str) -> None:
    await client.pause(mode)
    await client.update(directory, weight_version=version)
    await client.resume()


async def by_itself(client: Client, directory: Path, version: str, mode: str) -> None:
    await client.update(directory, weight_version=version, pause_mode=mode)


Swap = Callable[[Client, Path, str, str], Awaitable[None]]
WAYS: list[tuple[Swap, str]] = [
    (by_itself, "retract"),
    (paused, "in_place"),
    (paused, "retract"),
    (by_itself, "in_place"),
]


class Load:
    """``STREAMS`` clients, each with one request after the other until told to stop."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._stopping = False
        self.live: list[Stream] = [streams.start(PROMPTS[at], TOKENS[at]) for at in range(STREAMS)]
        self.replies: list[dict[str, Any]] = []
        self._clients = [asyncio.ensure_future(self._run(at)) for at in range(STREAMS)]

    async def _run(self, at: int) -> None:
        while True:
            self.replies.append(await self.live[at].finished())
            if self._stopping:
                return
            prompt = PROMPTS[(at + len(self.replies)) % len(PROMPTS)]
            self.live[at] = self._streams.start(prompt, TOKENS[at])

    async def everybody_sees(self, epoch: int) -> None:
        """Wait until each client has had a token of ``epoch`` or of a later one."""
        async with asyncio.timeout(LIMIT_S):
            for at, client in enumerate(self._clients):
                while not _sees(self.live[at], epoch):
                    await self.live[at].until(lambda stream: _sees(stream, epoch), or_end=True)
                    if client.done():
                        client.result()
                    # It ended under older weights: the client's next one will see them.
                    await asyncio.sleep(0)

    async def end(self) -> list[dict[str, Any]]:
        """Every reply, the last ones included. Raises: AssertionError for one that was lost."""
        self._stopping = True
        await asyncio.gather(*self._clients)
        return self.replies

    async def __aenter__(self) -> Load:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for client in self._clients:
            client.cancel()
        await asyncio.wait(self._clients)


def _sees(stream: Stream, epoch: int) -> bool:
    return bool(stream.tokens) and stream.meta["weight_epoch"] >= epoch


def check_spans(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """Half-open, in commit order, without gap or overlap; each token of its span's label."""
    tokens, meta = reply["output_ids"], reply["meta_info"]
    spans: list[dict[str, Any]] = meta["weight_versions"]
    assert meta["completion_tokens"] == len(tokens)
    assert len(tokens) in TOKENS
    assert meta["finish_reason"] == {"type": "length", "length": len(tokens)}
    edges = [0, *(span["end"] for span in spans)]
    assert edges[:-1] == [span["start"] for span in spans]
    assert edges[-1] == len(tokens)
    assert all(start < end for start, end in itertools.pairwise(edges))
    epochs = [span["weight_epoch"] for span in spans]
    assert epochs == sorted(set(epochs))
    assert meta["weight_version_start"] == spans[0]["version"]
    assert meta["weight_version_end"] == meta["weight_version"] == spans[-1]["version"]
    assert meta["weight_epoch"] == epochs[-1]
    for span in spans:
        epoch = span["weight_epoch"]
        assert span["version"] == (None if epoch == 0 else f"v{epoch}")
        labels = {token % 2 for token in tokens[span["start"] : span["end"]]}
        assert labels == {epoch % 2}, span
    return spans


async def test_every_token_belongs_to_the_weights_of_its_span(
    client: Client, labelled: list[Path]
) -> None:
    async with Streams(client) as streams, Load(streams) as load:
        await load.everybody_sees(0)
        for number in range(1, SWAPS + 1):
            swap, mode = WAYS[number % len(WAYS)]
            await swap(client, labelled[number % 2], f"v{number}", mode)
            assert (await client.version())["weight_epoch"] == number
            await load.everybody_sees(number)
        replies = await load.end()

    spans = [check_spans(reply) for reply in replies]
    crossed = {span["weight_epoch"] for one in spans for span in one[1:]}
    assert crossed == set(range(1, SWAPS + 1)), "a commit that no request lived through"
    assert {span["weight_epoch"] for one in spans for span in one} == set(range(SWAPS + 1))
    status = (await client.get("/status"))[1]
    assert status["in_flight"] == {"running": 0, "waiting": 0, "holding_kv": 0}
    assert status["counters"]["updates"] == {"disk/committed": SWAPS}
