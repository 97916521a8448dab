"""What a source brings along is in no reply, no event, no log and no status."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from hotswap.controller import Controller
from hotswap.errors import UpdateRejected
from hotswap.http import create_app
from hotswap.http.served import Served
from hotswap.plugins import Plugins
from hotswap.seams import LoadStrategy, Stage
from hotswap.settings import Settings
from hotswap.testing.fakes import FakeEngine, FakeStage, Steps, fake_weights
from hotswap.types import Placement, Update

UPDATE = "/update_weights_from_disk"
SOURCE = "s3://me:hunter2@bucket/run?X-Amz-Signature=0123abcd&part=1"
SHOWN = "s3://***@bucket/run?***"
SECRETS = ("hunter2", "0123abcd")


class Chatty:
    """Repeats what it was asked for, in the ways in which it may; ``fails`` says how."""

    def __init__(self) -> None:
        self.fails = ""

    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        if self.fails == "its own":
            raise PermissionError(f"403 for {update.source}: is it hunter2 or 0123abcd?")
        if self.fails == "ours":
            raise UpdateRejected("no such key as hunter2")
        yield FakeStage(fake_weights(2.0), steps=Steps())
        if self.fails == "leaving":
            raise RuntimeError("hunter2 is still logged in")


async def everything(strategy: Chatty, *sources: str) -> tuple[list[httpx.Response], list[Any]]:
    """The reply to each update, and what the server then shows and keeps."""
    engine = FakeEngine()
    controller = Controller(engine, strategies={"disk": strategy})

    def make(_options: object) -> LoadStrategy:
        return strategy

    settings = Settings(allow_weight_update=True, model="A")
    app = create_app(controller, engine, settings, plugins=Plugins(strategies={"disk": make}))
    transport = httpx.ASGITransport(app)
    base = "http://hotswap.test"
    async with controller, httpx.AsyncClient(transport=transport, base_url=base) as client:
        replies = [await client.post(UPDATE, json={"model_path": source}) for source in sources]
        served: Served = app.state.served
        log = served.observation.events
        with log.reading("0") as reader:
            events = [event.data for event in log.take(reader, limit=1000)]
        shown = [(await client.get(path)).text for path in ("/status", "/model_info", "/metrics")]
    return replies, [*events, *shown]


@pytest.mark.parametrize("fails", ["", "its own", "ours", "leaving"])
async def test_a_source_that_brings_secrets(fails: str, caplog: pytest.LogCaptureFixture) -> None:
    strategy = Chatty()
    strategy.fails = fails
    with caplog.at_level(logging.DEBUG):
        [reply], kept = await everything(strategy, SOURCE)
    assert reply.status_code == (400 if fails else 200)
    # What came in by the request's own door, and what the log of an embedder would get.
    lines = [f"{record.getMessage()} {record.__dict__}" for record in caplog.records]
    for text in (reply.text, *map(str, kept), *lines):
        assert not [secret for secret in SECRETS if secret in text], text
    assert any(SHOWN in str(text) for text in kept)
    assert any(SHOWN in line for line in lines)
    if not fails:
        assert reply.json()["model_dir"] == SHOWN


async def test_what_is_no_unicode_is_shown_with_escapes() -> None:
    """Names of files may be none; JSON has to be."""
    controller = Controller(FakeEngine(), strategies={"disk": Chatty()})
    settings = Settings(model="A\udcff")
    app = create_app(controller, FakeEngine(), settings, plugins=Plugins())
    transport = httpx.ASGITransport(app)
    async with controller, httpx.AsyncClient(transport=transport, base_url="http://h.test") as asks:
        await controller.update(Update(source="/b\udcff"))
        events = await asks.get("/hotswap/v1/events?stream=false")
        assert "/b\\\\udcff" in events.text
        assert (await asks.get("/status")).json()["model_path"] == "A\\udcff"
        assert (await asks.get("/model_info")).json()["tokenizer_path"] == "A\\udcff"
