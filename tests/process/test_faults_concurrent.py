"""A14: two updates at once, again and again: each reply is about its own request."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hotswap.testing.checkpoints import make_checkpoint
from tests.process.evidence import Evidence, assert_equal
from tests.process.fresh import fresh
from tests.process.served import Served
from tests.process.update_routes import DISK, EACH_ROUTE, Delivery, deliver

pytestmark = pytest.mark.process

ROUNDS = 50


@pytest.fixture(scope="module")
def c(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("c") / "c", seed=3)


@pytest.mark.parametrize("route", EACH_ROUTE)
@pytest.mark.parametrize("pause", [None, "retract"])
async def test_a14_two_updates_at_once(
    served: Served, b: Path, c: Path, route: str, pause: str | None
) -> None:
    client = served.client
    sums = {"b": (await fresh(b)).checksums, "c": (await fresh(c)).checksums}
    if pause is not None:
        await client.pause(pause)
    count = (await client.version())["weight_update_count"]
    for number in range(ROUNDS):
        two = [
            Delivery(directory=directory, version=f"{name}{number}", token_step=number)
            for name, directory in (("b", b), ("c", c))
        ]
        replies = await asyncio.gather(*(deliver(client, route, one) for one in two))

        done = [check_own(route, reply, one) for reply, one in zip(replies, two, strict=True)]
        assert any(done), replies
        live = await client.version()
        assert live["weight_update_count"] == count + sum(done)
        count = live["weight_update_count"]
        last = max((reply for _, reply in replies), key=lambda r: r.get("weight_epoch", -1))
        assert live["weight_version"] == last["weight_version"]
        assert await client.checksums() == sums[live["weight_version"][0]]
        if route == DISK:
            assert (await client.get("/status"))[1]["model_path"] == last["model_dir"]
    assert (await client.state())["facts"]["gate"] == pause
    await client.resume()
    wanted = {"b": b, "c": c}[(await client.version())["weight_version"][0]]
    assert_equal(await Evidence.of(client), await fresh(wanted))


def check_own(route: str, answer: tuple[int, Any], asked: Delivery) -> bool:
    """Whether it was done; a reply that is about another request fails."""
    status, reply = answer
    if status == 409:
        assert (reply["success"], reply["error"]["retryable"]) == (False, True)
        return False
    assert status == 200, answer
    assert reply["weight_version"] == asked.version
    assert reply["token_step"] == asked.token_step
    if route == DISK:
        assert reply["model_dir"] == str(asked.directory)
    return True
