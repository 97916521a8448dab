"""A server with a plug-in that brings everything that one can, and one that is refused."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.torch import load_file

from hotswap.cli import main
from hotswap.testing.fixtures import (
    MakeCheckpoint,
    StartServer,
    hotswap_server,
    tiny_checkpoint,
)
from hotswap.testing.server import ServerProcess
from tests.markdown_blocks import ROOT, Block, blocks_of

__all__ = ["hotswap_server", "tiny_checkpoint"]

pytestmark = pytest.mark.process

EVERYTHING = '''
from contextlib import asynccontextmanager

import torch
from prometheus_client import Counter
from safetensors.torch import load_file
from starlette.responses import JSONResponse

from hotswap import EmbeddedEngine, Kind, KindedRoute, Manifest, TensorSpec
from hotswap.options import Option

hotswap_api_version = 1
opened = Counter("toy_opened_total", "Sources opened.", registry=None)
told = {}


class Stage:
    def __init__(self, tensors):
        self.tensors = tensors
        self.manifest = Manifest.of(
            TensorSpec(name=name, dtype=tensor.dtype, shape=tuple(tensor.shape))
            for name, tensor in tensors.items()
        )

    def buckets(self):
        yield list(self.tensors.items())


class Strategy:
    @asynccontextmanager
    async def open(self, update, placement):
        opened.inc()
        yield Stage(load_file(f"{update.source}/model.safetensors"))


def hotswap_strategies():
    return {"toy": lambda values: told.update(strategy=dict(values)) or Strategy()}


def hotswap_engines():
    return {"toy": engine}


@asynccontextmanager
async def engine(values):
    told.update(engine=dict(values))
    async with EmbeddedEngine.from_directory(values["model"], device="cpu") as running:
        yield running


def hotswap_options():
    return [Option(name="toy-level", type=int, default=3, help="how much")]


async def levels(request):
    """What the factories were told."""
    return JSONResponse(told)


def hotswap_routes():
    return [KindedRoute("/toy/levels", levels, kind=Kind.OPEN, methods=["GET"])]


def hotswap_metrics():
    return [opened]


async def hotswap_pre_read(source, version):
    told.setdefault("read", []).append([source.rpartition("/")[2], version])


def hotswap_changed(change):
    told["changes"] = told.get("changes", 0) + 1
'''

EXITS = """
import asyncio
import sys

from starlette.responses import StreamingResponse

from hotswap import Kind, KindedRoute

hotswap_api_version = 1


def end(how):
    if how == "exit":
        sys.exit(3)
    raise asyncio.CancelledError if how == "cancelled" else KeyboardInterrupt


class Strategy:
    def open(self, update, placement):
        end(update.source)


class Collector:
    def collect(self):
        end("exit")


async def waits(request):
    end(request.path_params["how"])


def blocks(request):
    end(request.path_params["how"])


async def streams(request):
    async def pieces():
        yield b"begun"
        end(request.path_params["how"])

    return StreamingResponse(pieces())


def hotswap_strategies():
    return {"exits": lambda values: Strategy()}


def hotswap_metrics():
    return [Collector()]


def hotswap_routes():
    return [
        KindedRoute(f"/exits/{one.__name__}/{{how}}", one, kind=Kind.OPEN, methods=["GET"])
        for one in (waits, blocks, streams)
    ]


def hotswap_changed(change):
    end("exit")
"""

REFUSED = """
from hotswap import Kind, KindedRoute

hotswap_api_version = 1


def hotswap_routes():
    return [KindedRoute("/health", print, kind=Kind.OPEN, methods=["GET"])]
"""


def from_the_page(directive: str) -> Block:
    """Of the page about strategies: the module, which is its first file, or how it is used."""
    page = blocks_of(ROOT / "docs" / "how-to" / "write-a-strategy.md")
    found = [block for block in page if block.directive == directive]
    return found[0 if directive == "file" else -1]


def install(site: Path, dist: str, code: str) -> None:
    module = dist.replace("-", "_")
    (site / f"{module}.py").write_text(code)
    folder = site / f"{module}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[hotswap]\nit = {module}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site"
    folder.mkdir()
    install(folder, "hotswap-toy", EVERYTHING)
    install(folder, "hotswap-exits", EXITS)
    install(folder, "hotswap-greedy", REFUSED)
    install(folder, "hotswap-npz", from_the_page("file").code)
    monkeypatch.syspath_prepend(folder)
    yield folder
    for module in ("hotswap_toy", "hotswap_exits", "hotswap_greedy", "hotswap_npz"):
        sys.modules.pop(module, None)


def test_a_plugin_brings_engine_strategy_flag_variable_endpoint_metric_and_hooks(
    site: Path, hotswap_server: StartServer, tiny_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    a, b = tiny_checkpoint(seed=1), tiny_checkpoint(seed=2)
    environ = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(site), "HOTSWAP_TOY_LEVEL": "7"}
    server = hotswap_server(a, "--engine", "toy", environ=environ)
    with server.client() as client:
        before = client.get("/toy/levels").json()
        assert before["engine"]["toy-level"] == before["strategy"]["toy-level"] == 7
        assert before["engine"]["model"] == str(a)
        assert not [name for name in before["engine"] if "key" in name]
        prompt = {"text": "hello", "sampling_params": {"max_new_tokens": 4}}
        first = client.post("/generate", json=prompt).json()
        assert_goes_on_whatever_exits(client)

        update = {"model_path": str(b), "strategy": "toy", "weight_version": "2"}
        done = client.post("/update_weights_from_disk", json=update).json()
        assert done["success"] is True
        assert done["tensors_loaded"] == len(load_file(b / "model.safetensors"))

        second = client.post("/generate", json=prompt).json()
        assert second["meta_info"]["weight_version"] == "2"
        assert second["output_ids"] != first["output_ids"]
        after = client.get("/toy/levels").json()
        assert after["read"][-1] == [b.name, "2"]
        assert after["changes"] > before.get("changes", 0)
        shown = client.get("/metrics").text
        assert "toy_opened_total 1.0" in shown
        assert "/toy/levels" in client.get("/openapi.json").json()["paths"]

        update = {"model_path": "/x", "strategy": "rsync"}
        missing = client.post("/update_weights_from_disk", json=update)
        assert missing.status_code == 400
        assert "pip install hotswap-rsync" in missing.text
        assert client.get("/health").json()["status"] == "ok"
        assert_used_as_the_page_says(server, b, tmp_path / "step-8.npz")
    reason = "hotswap-greedy 1.0 (hotswap_greedy): route '/health' belongs to hotswap itself"
    assert f"plug-in refused: {reason}" in server.log


def assert_goes_on_whatever_exits(client: httpx.Client) -> None:
    for how in ("exit", "cancelled", "interrupted"):
        for kind in ("waits", "blocks"):
            reply = client.get(f"/exits/{kind}/{how}")
            assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")
            assert "of the plug-in hotswap-exits failed" in reply.text
        with pytest.raises(httpx.RemoteProtocolError):
            client.get(f"/exits/streams/{how}")
        update = {"model_path": how, "strategy": "exits"}
        refused = client.post("/update_weights_from_disk", json=update)
        assert (refused.status_code, refused.json()["success"]) == (400, False)
        assert refused.headers["x-hotswap-error"] == "UpdateRejected"
    assert "toy_opened_total" in client.get("/metrics").text
    assert client.get("/status").json()["weights"]["weight_update_count"] == 0


def test_both_are_listed(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [refused["name"] for refused in shown["refused"]] == ["hotswap-greedy"]
    [toy] = [plugin for plugin in shown["plugins"] if plugin["name"] == "hotswap-toy"]
    assert toy["engines"] == toy["strategies"] == ["toy"]
    assert (toy["flags"], toy["routes"]) == (["--toy-level"], ["/toy/levels"])


def assert_used_as_the_page_says(server: ServerProcess, model: Path, archive: Path) -> None:
    """Both commands of the page bring the archive, which the server finds nowhere else."""
    tensors = load_file(model / "model.safetensors")
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
    np.savez(archive, **arrays)
    code = from_the_page("tested").code.replace("http://127.0.0.1:30000", server.base_url)
    code = code.replace(".venv/bin/hotswap", f"{sys.executable} -m hotswap")
    done = subprocess.run(
        ["bash", "-eu", "-c", code.replace('"step-8.npz"', f'"{archive}"')],
        cwd=archive.parent,
        env={**os.environ, "HOTSWAP_URL": server.base_url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    by_command, by_curl = done.stdout.splitlines()
    assert by_command.startswith(f"version 8 is live: {len(tensors)} tensors, ")
    assert json.loads(by_curl)["tensors_loaded"] == len(tensors)
