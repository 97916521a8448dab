"""A server whose mount lags: an update that is sent too early is served once it is whole."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hotswap.plugins import load_plugins
from hotswap.testing.checkpoints import make_checkpoint
from hotswap.testing.server import ServerProcess


def test_the_plug_in_brings_its_hook_and_its_options() -> None:
    [plugin] = [one for one in load_plugins().dists if one.name == "hotswap-wait-visible"]
    assert plugin.hooks == ("hotswap_options", "hotswap_pre_read")
    assert plugin.flags == ("--wait-visible-root", "--wait-visible-s", "--wait-visible-every-s")


@pytest.mark.process
@pytest.mark.long
def test_an_update_that_comes_too_early_waits_and_one_in_vain_is_refused(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base", seed=1)
    new = make_checkpoint(tmp_path / "new", seed=2)
    mount = tmp_path / "mount"
    mount.mkdir()
    flags = ("--wait-visible-root", str(mount), "--wait-visible-s", "50")
    with (
        ServerProcess(base, *flags, environ={"OMP_NUM_THREADS": "1"}) as server,
        server.client() as client,
        ThreadPoolExecutor(1) as pool,
    ):
        body = {"model_path": str(mount / "step-1"), "weight_version": "1"}
        asked = pool.submit(client.post, "/update_weights_from_disk", json=body, timeout=60)
        # Published while the request is on its way or waits: it is the same to the client.
        shutil.copytree(new, mount / "away")
        weights = mount / "away" / "model.safetensors"
        weights.rename(mount / "weights")
        (mount / "away").rename(mount / "step-1")
        (mount / "weights").rename(mount / "step-1" / "model.safetensors")
        reply = asked.result()
        assert (reply.status_code, reply.json()["success"]) == (200, True)
        # Elsewhere nothing is waited for.
        refused = client.post("/update_weights_from_disk", json={"model_path": str(tmp_path / "x")})
        assert refused.status_code == 400
        assert "hotswap-wait-visible" not in refused.text
