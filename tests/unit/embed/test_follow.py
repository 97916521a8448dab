"""A module that somebody else serves follows a stream."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import torch
from hotswap_disk import DiskStrategy

from hotswap.embed import HotSwap, HotSwapThread
from hotswap.errors import UpdateRejected
from hotswap.settings import Settings
from hotswap.testing.fakes import FakeStrategy, Steps
from tests.process.published_checkpoints import publish_checkpoints
from tests.unit.embed.modules import LIMIT_S, checkpoint, filled, output


@pytest.fixture
def checkpoints(tmp_path: Path) -> list[Path]:
    """Four, each of one value."""
    return [Path(checkpoint(tmp_path / str(n), float(n))) for n in range(1, 5)]


def told(checkpoints: list[Path], tmp_path: Path, **more: Any) -> Settings:
    return Settings(
        model=str(checkpoints[0]),
        allow_weight_update=True,
        follow=str(tmp_path / "source"),
        follow_local=str(tmp_path / "local"),
        **more,
    )


async def test_it_keeps_itself_current(checkpoints: list[Path], tmp_path: Path) -> None:
    source = publish_checkpoints(tmp_path / "source", checkpoints[:2])
    module = filled(1.0)
    settings = told(checkpoints, tmp_path, follow_commit="auto", follow_interval_s=3600)
    strategies = {"disk": DiskStrategy()}
    async with HotSwap(module, settings=settings, strategies=strategies) as swap:
        assert swap.follower is not None
        with anyio.fail_after(LIMIT_S):
            assert (await swap.follower.look()).reached
            async with swap.gate:
                assert output(module) == output(filled(2.0))
            publish_checkpoints(tmp_path / "more", checkpoints)
            for version in ("weight_v000002", "weight_v000003"):
                (tmp_path / "more" / version).rename(source / version)
            seen = await swap.follower.look()
        assert (seen.live, swap.controller.stamp.version) == (3, "3")
        assert output(module) == output(filled(4.0))
        report = swap.controller.last_update
        assert report is not None
        assert report.commit_mode == "sparse"
        transport = httpx.ASGITransport(swap.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://hotswap.test") as client:
            assert (await client.get("/status")).json()["follow"]["state"] == "current"
            reply = await client.post("/hotswap/v1/commit", json={"version": 1, "wait_s": 60})
        assert (reply.status_code, reply.json()["weight_version"]) == (200, "1")


def test_on_a_thread_of_its_own(checkpoints: list[Path], tmp_path: Path) -> None:
    publish_checkpoints(tmp_path / "source", checkpoints)
    module = filled(1.0)
    reached = threading.Event()
    swap = HotSwap(
        module, settings=told(checkpoints, tmp_path), strategies={"disk": DiskStrategy()}
    )
    with HotSwapThread(swap) as thread:
        assert swap.follower is not None
        swap.follower.observe(lambda status: reached.set() if status.reached else None)
        # It may have been quicker.
        if not swap.follower.status.reached:
            assert reached.wait(LIMIT_S)
        assert thread.state == "serving"
    assert output(module) == output(filled(4.0))


def test_what_cannot_be_followed_is_said_at_once(checkpoints: list[Path], tmp_path: Path) -> None:
    steps = Steps()
    other = {"other": FakeStrategy(sources={"a": {"w": torch.ones(1)}}, steps=steps)}
    with pytest.raises(UpdateRejected, match="pip install hotswap-disk"):
        HotSwap(filled(1.0), settings=told(checkpoints, tmp_path), strategies=other)
    with pytest.raises(ValueError, match="follow needs model"):
        HotSwap(filled(1.0), settings=Settings(follow="/s"), strategies=other)
