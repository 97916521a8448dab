"""A1, A6, A7, A8, A15, A17, A25, A29: an update that is refused changes nothing (O3).

Every bad checkpoint, over every update route, in every way of pausing, staged and
direct. A stream that is in flight lives through it and never sees a weight of the
refused checkpoint.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.bad_checkpoints import FAULTS
from tests.process.evidence import PROMPTS
from tests.process.fresh import fresh
from tests.process.http_client import Streams, text_of
from tests.process.served import Served, by_turns
from tests.process.update_routes import (
    DISK,
    DRIVERS,
    MODES,
    PUSH,
    ROUTES,
    TENSOR,
    Delivery,
    deliver,
)

pytestmark = pytest.mark.process

TOKENS = 10
WAYS = [("idle", None), *(("paused", mode) for mode in MODES), *(("swap", mode) for mode in MODES)]

# A push has no files.
CASES = [
    (route, name, way, mode)
    for route in ROUTES
    for name, fault in FAULTS.items()
    for way, mode in WAYS
    if route == DISK or fault.in_tensors
]


def is_long(route: str, name: str, way: str, mode: str | None) -> bool:
    """What is checked of a bad push in every way is what is checked of a bad checkpoint."""
    return route != DISK and way != "idle"


@pytest.fixture(scope="session")
def broken(b: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every bad checkpoint of the table, made of ``b``."""
    root = tmp_path_factory.mktemp("broken")
    for name, fault in FAULTS.items():
        fault.make(b, root / name)
    return {name: root / name for name in FAULTS}


def test_every_update_route_has_a_driver() -> None:
    assert set(ROUTES) == set(DRIVERS)
    assert {DISK, PUSH, TENSOR} <= set(ROUTES)


@by_turns("route, name, way, mode", CASES, is_long=is_long)
async def test_a_refused_update_changes_nothing(
    served: Served, a: Path, broken: dict[str, Path], route: str, name: str, way: str, mode: str
) -> None:
    client, parks = served.client, mode in ("retract", "in_place")
    async with Streams(client) as streams:
        stream = streams.start(PROMPTS[0], TOKENS) if parks else None
        if stream is not None:
            await stream.has_tokens()
        if way == "paused":
            await client.pause(mode)
        before = await client.snapshot()

        delivery = Delivery(
            directory=broken[name],
            version="never",
            token_step=99,
            pause_mode=mode if way == "swap" else None,
        )
        status, reply = await deliver(client, route, delivery)

        assert (status, reply["success"]) == (400, False)
        assert reply["error"]["code"] == "validation_error"
        for word in FAULTS[name].says:
            assert word in text_of(reply)
        assert await client.snapshot() == before
        assert before.version["weight_version"] == "start"
        assert before.facts["gate"] == (mode if way == "paused" else None)
        # Continue is safe to repeat, and what was paused goes on with the old weights.
        for _ in range(2):
            assert (await client.resume())["paused"] is False
        tokens = [ids[:TOKENS] for ids in (await fresh(a)).tokens]
        if stream is not None:
            assert (await stream.finished())["output_ids"] == tokens[0]
            assert {span["version"] for span in stream.meta["weight_versions"]} == {"start"}
        assert (await client.generate(PROMPTS[1], TOKENS))["output_ids"] == tokens[1]
    assert (await client.get("/ready"))[0] == 200
