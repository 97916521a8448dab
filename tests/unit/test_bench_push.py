"""What the push benchmarks compare, and that the upload they compare with counts bytes."""

from __future__ import annotations

import httpx
import pytest

from contrib.bench import push_bucket, push_native
from contrib.bench.__main__ import chosen
from contrib.bench.health import LIMIT_MS, health_measures
from contrib.bench.push_upload_side import app


def test_push_is_both_of_them() -> None:
    assert chosen(["push"]) == ["push_native", "push_bucket"]
    # One that has the whole name is meant alone.
    assert chosen(["pull"]) == ["pull"]


def test_the_limits_are_the_shares_that_are_wanted() -> None:
    limits = push_bucket.LIMIT, push_native.SHARED_LIMIT, push_native.BODY_LIMIT
    assert limits == pytest.approx((2.5, 2.5, 2.0))


def test_each_load_mode_has_its_own_copies() -> None:
    rounds = push_bucket._Rounds(
        copy_ms=[100.0, 110.0], push_ms=[260.0, 240.0], paused_ms=[80.0, 90.0]
    )
    measures = push_bucket._measures("direct", rounds)
    assert [one.name for one in measures] == [
        "direct: copy_",
        "direct: paused",
        "direct: push",
        "direct: push / copy_",
    ]
    assert [one.value for one in measures] == [100.0, 80.0, 240.0, 2.4]
    assert [one.limit for one in measures] == [None, None, None, 2.5]
    assert measures[-1].passed


def test_probes_beside_a_push_are_judged_by_their_slowest_hundredth() -> None:
    quick, slow = health_measures("body", [5.0] * 98 + [LIMIT_MS + 1.0] * 2)
    assert (quick.name, quick.value, quick.limit) == ("body: /health p50", 5.0, None)
    assert (slow.value, slow.passed) == (LIMIT_MS + 1.0, False)


async def test_the_bare_upload_says_how_many_bytes_came() -> None:
    transport = httpx.ASGITransport(app=app())
    async with httpx.AsyncClient(transport=transport, base_url="http://bench") as http:
        reply = await http.post("/upload", content=b"12345")
    assert reply.json() == {"bytes": 5}
