"""The how-to about embedding: every block prints what it says, and its app works."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette

from hotswap.testing.checkpoints import make_checkpoint
from tests.markdown_blocks import ROOT, Block, blocks_of

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
    for name in ("toy", "app", "fast"):
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
    assert [block.expected for block in FILES] == ["toy.py", "app.py", "fast.py"]


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


def imported(name: str) -> ModuleType:
    return importlib.import_module(name)
