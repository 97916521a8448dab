"""A10: every kind of buffer after an update over HTTP, on a module that has them all."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
import torch
from hotswap_disk import DiskStrategy
from safetensors.torch import save_file

from hotswap.controller import Controller
from hotswap.http import create_app
from hotswap.plugins import Plugins
from hotswap.seams import LoadStrategy
from hotswap.settings import Settings
from hotswap.testing.module_engine import ModuleEngine
from hotswap.testing.tiny_modules import TinyModel, tiny_state, tiny_target
from tests.process.http_client import Client
from tests.process.update_routes import ROUTES, Delivery, deliver

pytestmark = pytest.mark.process


def _made_already(_options: object) -> LoadStrategy:
    raise AssertionError("the controller has its strategies already")


@pytest.mark.parametrize("mode", ["staged", "direct"])
@pytest.mark.parametrize("route", ROUTES)
async def test_a10_persistent_load_others_stay_and_derived_follow(
    tmp_path: Path, route: str, mode: str
) -> None:
    model = TinyModel()
    state = tiny_state(5)
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({}))
    inv_freq = model.get_buffer("inv_freq").clone()
    engine = ModuleEngine(tiny_target(model))
    async with Controller(engine, strategies={"disk": DiskStrategy()}) as controller:
        app = create_app(
            controller,
            engine,
            Settings(allow_weight_update=True, load_mode=mode),
            plugins=Plugins(strategies={"disk": _made_already}),
        )
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://inside") as http:
            for times in (1, 2):
                status, reply = await deliver(Client(http), route, Delivery(directory=tmp_path))

                assert (status, reply["tensors_loaded"]) == (200, len(state))
                assert model.layer.recomputed == times, "derived tensors: once a commit"

    assert torch.equal(model.get_buffer("inv_freq"), inv_freq)
    for name in ("steps", "mean"):
        assert torch.equal(model.get_buffer(name), state[name])
    assert torch.equal(model.layer.derived, state["layer.scale"] + 1)
    parts = [state[f"layer.{part}_proj.weight"] for part in "qkv"]
    assert torch.equal(model.layer.qkv_proj.weight, torch.cat(parts))
