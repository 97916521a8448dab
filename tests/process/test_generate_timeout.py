"""A request that nobody waits for any more holds nothing any more, paused or not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.process.evidence import PROMPTS
from tests.process.http_client import Streams, generate_body
from tests.process.in_process import load, serving
from tests.process.told import refusal

pytestmark = pytest.mark.process

ENDLESS = 1800
NOTHING = {"running": 0, "waiting": 0, "holding_kv": 0}


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
@pytest.mark.parametrize("mode", ["in_place", "retract"])
async def test_a_504_gives_the_memory_back(a: Path, dialect: str, mode: str) -> None:
    """One whole reply and one stream, which the pause would keep for ever."""
    async with (
        serving(load(a), dialect=dialect, generate_timeout_s=0.3) as server,
        Streams(server.client) as streams,
    ):
        client = server.client
        body = generate_body(PROMPTS[0], ENDLESS) | {"rid": "mine"}
        whole = asyncio.ensure_future(client.post("/generate", **body))
        stream = streams.start(PROMPTS[1], ENDLESS)
        await stream.until(lambda stream: bool(stream.tokens), or_end=True)
        await client.pause(mode)

        message = refusal(dialect, "too slow", await whole, reports_success=False)
        assert "--generate-timeout-s" in message
        await stream.until(lambda stream: stream.ended)
        assert stream.error is not None
        assert "--generate-timeout-s" in stream.error["message"]
        await client.until_status(lambda status: status["in_flight"] == NOTHING)
        assert (await client.state())["facts"]["gate"] == mode

        await client.resume()
        server.app.state.served.patience_s = 0.0  # for ever: a busy machine is no fault
        # Its id is free, and so is what it held.
        again = await client.generate(PROMPTS[0], 4, rid="mine")
        assert again["meta_info"]["completion_tokens"] == 4
