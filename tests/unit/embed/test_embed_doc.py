"""The how-to about embedding: every block prints what it says, and its app works."""

from __future__ import annotations

import asyncio
import importlib
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette

from hotswap.embed import ForwardGate
from hotswap.testing.checkpoints import make_checkpoint
from tests.markdown_blocks import ROOT, Block, blocks_of
from tests.unit.embed.modules import LIMIT_S

BLOCKS = blocks_of(ROOT / "docs" / "how-to" / "embed.md")
# Those that it runs itself; the first one is run with the blocks of all other pages.
RUN = [block for block in BLOCKS if block.directive == "tested"]
FILES = [block for block in BLOCKS if block.directive == "file"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory: the document's files, and a model for its rollout."""
    for block in FILES:
        assert block.expected is not None
        (tmp_path / block.expected).write_text(block.code, encoding="utf-8")
    make_checkpoint(tmp_path / ".demo" / "A")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("toy", "app", "fast", "serve"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("block", RUN, ids=lambda block: str(block.line))
def test_a_block_prints_what_the_document_says(
    block: Block, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = place / "block.py"
    script.write_text(block.code, encoding="utf-8")
    runpy.run_path(str(script), run_name="__main__")
    # A comment after the print, or lines of them, say what it prints.
    promised = [line.rpartition("# ")[2] for line in block.code.splitlines() if "# " in line]
    assert promised
    assert capsys.readouterr().out.splitlines() == promised


def test_the_document_has_three_of_those_and_the_first_is_run_elsewhere() -> None:
    assert len(RUN) == 3
    assert [block.directive for block in BLOCKS if block.language == "python"][1] == "run"
    assert [block.expected for block in FILES] == ["toy.py", "app.py", "fast.py", "serve.py"]


@pytest.mark.parametrize(("name", "kind"), [("app", Starlette), ("fast", FastAPI)])
async def test_the_apps_serve_and_swap_under_their_prefix(
    name: str, kind: type[Starlette], place: Path
) -> None:
    toy, module = imported("toy"), imported(name)
    app = module.app
    assert type(app) is kind
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://embed.test") as client,
    ):
        assert (await client.get("/predict")).json() == {"y": 4.0}
        reply = await client.post(
            "/weights/update_weights_from_disk", json={"model_path": toy.publish("B", 2.0)}
        )
        assert reply.json()["success"]
        assert (await client.get("/predict")).json() == {"y": 8.0}
        assert (await client.get("/weights/hotswap/v1/state")).json()["state"] == "serving"


async def test_who_is_told_to_end_cuts_no_client_off(place: Path) -> None:
    """A pass that waits at the gate, and a reader of events, which would wait for ever."""
    script, port = place / "serve.py", free_port()
    script.write_text(script.read_text().replace("127.0.0.1:8000", f"127.0.0.1:{port}"))
    serving = asyncio.create_task(imported("serve").main())
    address = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=address, timeout=LIMIT_S) as client:
        await until_answered(client, serving)
        assert (await client.post("/weights/pause_generation")).is_success
        async with client.stream("GET", "/weights/hotswap/v1/events") as events:
            lines = events.aiter_lines()
            assert (await anext(lines)).startswith("id: ")
            waiting = asyncio.create_task(client.get("/predict"))
            await asyncio.to_thread(until_one_waits_at_the_gate)
            os.kill(os.getpid(), signal.SIGTERM)
            seen = [line async for line in lines]
        assert (await waiting).json() == {"y": 4.0}
    assert "event: shutdown" in seen
    await asyncio.wait_for(serving, LIMIT_S)


def until_one_waits_at_the_gate() -> None:
    entering = ForwardGate.__enter__.__code__
    while not any(
        entering in [frame.f_code for frame, _ in traceback.walk_stack(innermost)]
        for innermost in sys._current_frames().values()
    ):
        time.sleep(0.001)  # the gate tells nobody that somebody waits there


async def until_answered(client: httpx.AsyncClient, serving: asyncio.Task[None]) -> None:
    """Until the server has its port; a server that has failed says why."""
    while True:
        try:
            assert (await client.get("/weights/health")).is_success
        except httpx.ConnectError:
            if serving.done():
                await serving
            await asyncio.sleep(0.01)
        else:
            return


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found: int = taken.getsockname()[1]
        return found


def imported(name: str) -> ModuleType:
    return importlib.import_module(name)
