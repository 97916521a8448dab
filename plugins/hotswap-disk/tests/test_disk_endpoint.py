"""What the plug-in brings besides its strategy: an endpoint and metrics."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import save_file

from hotswap.http import create_app
from hotswap.plugins import load_plugins
from hotswap.settings import Settings
from hotswap.testing import ModuleEngine
from hotswap.testing.fake_commands import FakeCommands
from hotswap.testing.tiny_modules import TinyModel, tiny_state, tiny_target

CHECK = "/hotswap/v1/disk/check"
Serve = Callable[..., httpx.AsyncClient]


def checkpoint(directory: Path, tensors: dict[str, torch.Tensor]) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    clients: list[httpx.AsyncClient] = []

    def make(**settings: Any) -> httpx.AsyncClient:
        engine = ModuleEngine(tiny_target(TinyModel()))
        told = Settings(**({"allow_weight_update": True} | settings))
        app = create_app(FakeCommands(), engine, told, plugins=load_plugins())
        transport = httpx.ASGITransport(app)
        clients.append(httpx.AsyncClient(transport=transport, base_url="http://hotswap.test"))
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()


async def asked(client: httpx.AsyncClient, directory: object) -> Any:
    reply = await client.post(CHECK, json={"model_path": str(directory)})
    assert reply.status_code == 200
    return reply.json()


async def counted(client: httpx.AsyncClient) -> dict[str, float]:
    lines = (await client.get("/metrics")).text.splitlines()
    return {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] != "#")
        if name.startswith("hotswap_disk")
    }


async def test_a_checkpoint_that_fits_would_be_taken(serve: Serve, tmp_path: Path) -> None:
    state = tiny_state(1)
    told = await asked(serve(), checkpoint(tmp_path / "a", state))
    size = sum(tensor.nbytes for tensor in state.values())
    assert told == {
        "loadable": True,
        "reason": None,
        "tensors": len(state),
        "bytes": size,
        "unknown": [],
    }


async def test_one_that_does_not_fit_says_why(serve: Serve, tmp_path: Path) -> None:
    state = tiny_state(1)
    del state["mean"]
    told = await asked(serve(), checkpoint(tmp_path / "a", state))
    assert told["loadable"] is False
    assert "1 missing: mean" in told["reason"]


@pytest.mark.parametrize("source", ["", "/nonexistent", "a\0b"])
async def test_what_is_no_directory_says_so(serve: Serve, source: str) -> None:
    told = await asked(serve(), source)
    assert told["loadable"] is False
    assert "checkpoint" in told["reason"]


async def test_the_roots_count_here_too(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "roots").mkdir()
    outside = checkpoint(tmp_path / "a", tiny_state(1))
    client = serve(plugin_options={"weights-root": (str(tmp_path / "roots"),)})
    assert "outside the weights roots" in (await asked(client, outside))["reason"]


async def test_it_is_closed_where_updates_are_not_allowed(serve: Serve) -> None:
    client = serve(allow_weight_update=False)
    reply = await client.post(CHECK, json={"model_path": "/"})
    assert reply.status_code == 403
    assert (await client.post(CHECK)).status_code == 403


async def test_a_body_without_a_path_is_an_error(serve: Serve) -> None:
    reply = await serve().post(CHECK, json={})
    assert reply.status_code == 400
    assert "model_path" in json.dumps(reply.json())


async def test_checkpoints_are_counted(serve: Serve, tmp_path: Path) -> None:
    client = serve()
    before = await counted(client)
    await asked(client, checkpoint(tmp_path / "a", tiny_state(1)))
    await asked(client, "/nonexistent")
    after = await counted(client)
    name = 'hotswap_disk_checkpoints_total{outcome="%s"}'
    assert after[name % "opened"] == before[name % "opened"] + 1
    assert after[name % "rejected"] == before[name % "rejected"] + 1
    assert after["hotswap_disk_checkpoints_open"] == 0.0
