"""A server with a plug-in that brings everything that one can, and one that is refused."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from hotswap.testing.checkpoints import make_checkpoint
from hotswap.testing.server import ServerProcess

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

REFUSED = """
from hotswap import Kind, KindedRoute

hotswap_api_version = 1


def hotswap_routes():
    return [KindedRoute("/health", print, kind=Kind.OPEN, methods=["GET"])]
"""


def install(site: Path, dist: str, code: str) -> None:
    module = dist.replace("-", "_")
    (site / f"{module}.py").write_text(code)
    folder = site / f"{module}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[hotswap]\nit = {module}\n")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    install(folder, "hotswap-toy", EVERYTHING)
    install(folder, "hotswap-greedy", REFUSED)
    return folder


@pytest.fixture(scope="module")
def server(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = make_checkpoint(tmp_path_factory.mktemp("model") / "a", seed=1)
    environ = {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(site),
        "HOTSWAP_TOY_LEVEL": "7",
    }
    with ServerProcess(model, "--engine", "toy", environ=environ) as running:
        yield running


def test_a_plugin_brings_engine_strategy_flag_variable_endpoint_metric_and_hooks(
    server: ServerProcess, tmp_path: Path
) -> None:
    b = make_checkpoint(tmp_path / "b", seed=2)
    with server.client() as client:
        before = client.get("/toy/levels").json()
        assert before["engine"]["toy-level"] == before["strategy"]["toy-level"] == 7
        assert before["engine"]["model"].endswith("/a")
        assert not [name for name in before["engine"] if "key" in name]
        prompt = {"text": "hello", "sampling_params": {"max_new_tokens": 4}}
        first = client.post("/generate", json=prompt).json()

        update = {"model_path": str(b), "strategy": "toy", "weight_version": "2"}
        done = client.post("/update_weights_from_disk", json=update).json()
        assert done["success"] is True
        assert done["tensors_loaded"] == len(load_file(b / "model.safetensors"))

        second = client.post("/generate", json=prompt).json()
        assert second["meta_info"]["weight_version"] == "2"
        assert second["output_ids"] != first["output_ids"]
        after = client.get("/toy/levels").json()
        assert after["read"] == [["b", "2"]]
        assert after["changes"] > before.get("changes", 0)
        shown = client.get("/metrics").text
        assert "toy_opened_total 1.0" in shown
        assert "/toy/levels" in client.get("/openapi.json").json()["paths"]


def test_a_strategy_that_is_not_installed_is_named_with_its_dist(server: ServerProcess) -> None:
    with server.client() as client:
        reply = client.post(
            "/update_weights_from_disk", json={"model_path": "/x", "strategy": "rsync"}
        )
    assert reply.status_code == 400
    assert "pip install hotswap-rsync" in reply.text


def test_the_refused_one_is_in_the_log_and_in_the_list(server: ServerProcess, site: Path) -> None:
    reason = "hotswap-greedy 1.0 (hotswap_greedy): route '/health' belongs to hotswap itself"
    assert f"plug-in refused: {reason}" in server.log
    with server.client() as client:
        assert client.get("/health").json()["status"] == "ok"
    listed = subprocess.run(
        [sys.executable, "-m", "hotswap", "plugins", "--json"],
        env={"PYTHONPATH": str(site), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    shown = json.loads(listed.stdout)
    assert [refused["name"] for refused in shown["refused"]] == ["hotswap-greedy"]
    [toy] = [plugin for plugin in shown["plugins"] if plugin["name"] == "hotswap-toy"]
    assert toy["engines"] == toy["strategies"] == ["toy"]
    assert (toy["flags"], toy["routes"]) == (["--toy-level"], ["/toy/levels"])
