"""``/release_memory_occupation``, ``/resume_memory_occupation``, ``/post_process_weights``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from hotswap.errors import CommandError, InFlight
from hotswap.state import Facts, Machine, Weights

RELEASE, RESUME = "/release_memory_occupation", "/resume_memory_occupation"
POST_PROCESS = "/post_process_weights"


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("body", [None, {}, {"tags": None}, {"tags": []}, {"rid": "x"}])
async def test_no_tags_are_all_of_them(serving: Any, method: str, body: object) -> None:
    status, reply = await serving.json(method, RELEASE, json=body)
    assert (status, reply) == (
        200,
        {
            "success": True,
            "message": "Released kv_cache, weights.",
            "tags": ["kv_cache", "weights"],
            "released": ["kv_cache", "weights"],
            "num_aborted_requests": 0,
        },
    )
    status, reply = await serving.json(method, RELEASE, json=body)
    assert (status, reply["tags"], reply["released"]) == (200, [], ["kv_cache", "weights"])
    status, reply = await serving.json(method, RESUME, json=body)
    assert (status, reply) == (
        200,
        {
            "success": True,
            "message": "Resumed kv_cache, weights.",
            "tags": ["kv_cache", "weights"],
            "released": [],
        },
    )
    tags = ["cuda_graph", "kv_cache", "weights"]
    assert serving.commands.memory.calls == [f"sleep {tags} -"] * 2 + [f"wake {tags}"]


async def test_sglang_s_dialect_answers_null(serve: Callable[..., Any]) -> None:
    serving = serve(dialect="sglang")
    for path in (RELEASE, RESUME):
        assert await serving.json("POST", path, json={"tags": ["weights"]}) == (200, None)
    assert serving.commands.memory.calls == ["sleep ['weights'] -", "wake ['weights']"]


@pytest.mark.parametrize(
    ("fields", "mode"),
    [({"abort_all_requests": True}, "abort"), ({"pause_mode": "retract"}, "retract")],
)
async def test_how_requests_in_flight_are_met(
    serving: Any, fields: dict[str, object], mode: str
) -> None:
    status, reply = await serving.json("POST", RELEASE, json={"tags": ["kv_cache"], **fields})
    assert (status, reply["num_aborted_requests"]) == (200, 1)
    assert serving.commands.memory.calls == [f"sleep ['kv_cache'] {mode}"]


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        (RELEASE, {"tags": ["weights", "cache"]}, "cache"),
        (RESUME, {"tags": ["weight"]}, "weight"),
        (RESUME, {"tags": "weights"}, "tags"),
        (RELEASE, {"pause_mode": "in_place"}, "in_place"),
        (RELEASE, {"pause_mode": "never"}, "never"),
    ],
)
async def test_what_is_no_tag_or_mode_changes_nothing(
    serve: Callable[..., Any], dialect: str, path: str, body: object, named: str
) -> None:
    serving = serve(dialect=dialect)
    status, reply = await serving.json("POST", path, json=body)
    assert (status, reply["success"]) == (400, False)
    assert named in reply["message"]
    assert serving.commands.memory.calls == []


@pytest.mark.parametrize(("dialect", "wanted"), [("gr", 409), ("sglang", 400)])
@pytest.mark.parametrize("error", [InFlight("2 requests run"), CommandError("no memory")])
async def test_a_refusal_says_why(
    serve: Callable[..., Any], dialect: str, wanted: int, error: Exception
) -> None:
    serving = serve(dialect=dialect)
    serving.commands.memory.refusal = error
    for path in (RELEASE, RESUME):
        status, reply = await serving.json("POST", path)
        assert (status, reply["success"], reply["message"]) == (wanted, False, str(error))


@pytest.mark.parametrize("path", [RELEASE, RESUME, POST_PROCESS])
async def test_they_are_for_those_who_may_update(serve: Callable[..., Any], path: str) -> None:
    assert (await serve(allow_weight_update=False).json("POST", path))[0] == 403


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
async def test_weights_that_are_released_cannot_be_looked_at(
    serve: Callable[..., Any], dialect: str
) -> None:
    serving = serve(dialect=dialect)
    serving.commands.machine = Machine(Facts(weights=Weights.RELEASED))
    asked = [("/get_weights_by_name", {"name": "embed.weight"})]
    asked += [("/weights_checker", {"action": one}) for one in ("checksum", "snapshot")]
    for path, body in asked:
        status, reply = await serving.json("POST", path, json=body)
        assert status == (409 if dialect == "gr" else 400), (path, body)
        assert "resume_memory_occupation" in str(reply)


@pytest.mark.parametrize(
    "body",
    [None, {"restore_weights_before_load": True}, {"post_process_quantization": "true"}],
)
async def test_post_process_is_a_yes(serving: Any, body: object) -> None:
    status, reply = await serving.json("POST", POST_PROCESS, json=body)
    assert (status, reply) == (200, {"success": True, "message": "Success"})
    assert serving.commands.calls == []


async def test_post_process_waits_for_whoever_writes(serving: Any) -> None:
    replies = list[int]()

    async def ask() -> None:
        replies.append((await serving.json("POST", POST_PROCESS, json={}))[0])

    async with anyio.create_task_group() as tasks:
        with serving.commands.writes.open():
            tasks.start_soon(ask)
            while not serving.commands.writes.waiting:
                await anyio.lowlevel.checkpoint()
            assert replies == []
    assert replies == [200]
