"""``/abort_request``: one, a prefix, all; wherever the request is."""

import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from hotswap.testing.asgi_call import AsgiCall
from hotswap.testing.scripted_engine import ScriptedEngine


@pytest.fixture(params=["gr", "sglang"])
def manual(serve: Callable[..., Any], request: pytest.FixtureRequest) -> Any:
    return serve(
        engine=ScriptedEngine(reply=None), dialect=request.param, allow_weight_update=False
    )


async def abort(serving: Any, **body: object) -> None:
    reply = await serving.client.post("/abort_request", json=body)
    assert (reply.status_code, reply.content) == (200, b"")


async def running(serving: Any, *rids: str) -> None:
    while not set(rids) <= set(serving.engine.generations):
        await anyio.lowlevel.checkpoint()


def body_of(messages: list[Any]) -> Any:
    start, body = messages
    assert start["status"] == 200
    return json.loads(body["body"])


@pytest.mark.parametrize(
    ("sent", "hit"),
    [
        ({"rid": "a", "prefix": False}, {"a"}),
        ({"rid": "ab"}, {"ab"}),
        ({"rid": "a", "prefix": True}, {"a", "ab", "a_b"}),
        ({"rid": "a_", "prefix": "true"}, {"a_b"}),
        ({"rid": "b"}, {"b_0", "b_1"}),
        ({"rid": "b_1"}, {"b_1"}),
        ({"abort_all": True}, {"a", "ab", "a_b", "b_0", "b_1"}),
        ({"rid": "", "abort_all": True}, {"a", "ab", "a_b", "b_0", "b_1"}),
        ({"rid": None, "abort_all": "true"}, {"a", "ab", "a_b", "b_0", "b_1"}),
        ({"rid": "nobody"}, set()),
        ({"rid": "nobody", "prefix": True}, set()),
        ({"rid": ""}, set()),
        ({"rid": "", "prefix": True}, set()),
        ({"prefix": True}, set()),
        ({}, set()),
    ],
)
async def test_which_requests_are_meant(
    manual: Any, sent: dict[str, object], hit: set[str]
) -> None:
    await aborted_are(manual, sent, hit)


@pytest.mark.parametrize(
    ("dialect", "hit"), [("gr", {"a"}), ("sglang", {"a", "ab", "a_b"})], ids=["gr", "sglang"]
)
async def test_an_id_alone_means_what_the_dialect_says(
    serve: Callable[..., Any], dialect: str, hit: set[str]
) -> None:
    serving = serve(engine=ScriptedEngine(reply=None), dialect=dialect)
    await aborted_are(serving, {"rid": "a"}, hit)


async def aborted_are(manual: Any, sent: dict[str, object], hit: set[str]) -> None:
    bodies: list[dict[str, object]] = [{"text": "x", "rid": rid} for rid in ("a", "ab", "a_b")]
    bodies.append({"text": ["x", "y"], "rid": "b"})
    async with AsyncExitStack() as stack:
        for body in bodies:
            await stack.enter_async_context(AsgiCall(manual.app, "POST", "/generate", body))
        await running(manual, "a", "ab", "a_b", "b_0", "b_1")

        await abort(manual, **sent)

        generations = manual.engine.generations
        assert {rid for rid, one in generations.items() if one.aborted.is_set()} == hit
    assert len(manual.app.state.served.requests) == 0


async def test_an_aborted_reply_has_what_there_is_and_says_why(manual: Any) -> None:
    async with AsgiCall(manual.app, "POST", "/generate", {"text": "a", "rid": "r"}) as call:
        await running(manual, "r")
        manual.engine.generations["r"].emit(b"so")
        await abort(manual, rid="r", abort_message="rollout is over")
        await abort(manual, rid="r", abort_message="again")
        reply = body_of(await call.finished())

    assert reply["text"] == "so"
    assert reply["meta_info"]["finish_reason"] == {
        "type": "abort",
        "message": "rollout is over",
        "status_code": None,
        "err_type": None,
    }


async def test_a_part_of_a_batch_ends_and_the_others_go_on(manual: Any) -> None:
    async with AsgiCall(manual.app, "POST", "/generate", {"text": ["a", "b"], "rid": "r"}) as call:
        await running(manual, "r_0", "r_1")
        await abort(manual, rid="r_0")
        assert not manual.engine.generations["r_1"].aborted.is_set()
        manual.engine.generations["r_1"].finish("length")
        replies = body_of(await call.finished())

    kinds = [reply["meta_info"]["finish_reason"]["type"] for reply in replies]
    assert kinds == ["abort", "length"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_is_held_at_the_door_ends_there(manual: Any, stream: bool) -> None:
    manual.commands.admission.door = anyio.Event()
    body = {"text": "a", "rid": "r", "stream": stream}
    async with AsgiCall(manual.app, "POST", "/generate", body) as call:
        while not manual.commands.admission.entering:
            await anyio.lowlevel.checkpoint()
        await abort(manual, rid="r")
        if stream:
            reply = await call.next_event()
            assert await call.next_event() == "[DONE]"
        else:
            reply = body_of(await call.finished())

    assert reply["output_ids"] == []
    finish = reply["meta_info"]["finish_reason"]
    assert (finish["type"], finish["message"]) == ("abort", "Abort in waiting queue")
    assert manual.engine.generations == {}
    assert manual.commands.admission.entering == 0
    assert len(manual.app.state.served.requests) == 0


async def test_a_held_batch_waits_on_for_the_parts_that_are_left(manual: Any) -> None:
    door = manual.commands.admission.door = anyio.Event()
    body = {"text": ["a", "b"], "rid": "r"}
    async with AsgiCall(manual.app, "POST", "/generate", body) as call:
        while not manual.commands.admission.entering:
            await anyio.lowlevel.checkpoint()
        await abort(manual, rid="r_1")
        assert manual.commands.admission.entering == 1
        door.set()
        await running(manual, "r_0")
        manual.engine.generations["r_0"].finish("length")
        replies = body_of(await call.finished())

    kinds = [reply["meta_info"]["finish_reason"]["type"] for reply in replies]
    assert kinds == ["length", "abort"]
    assert set(manual.engine.generations) == {"r_0"}


async def test_a_submitted_request_has_its_result(manual: Any) -> None:
    await manual.json("POST", "/submit", json={"input_ids": [97], "request_id": "r"})
    await abort(manual, abort_all=True, abort_message="stop")

    status, reply = await manual.json("GET", "/result/r?timeout=10")
    assert (status, reply["state"]) == (200, "aborted")
    assert reply["meta_info"]["finish_reason"]["message"] == "stop"


async def test_a_held_submission_is_accepted_and_aborted(manual: Any) -> None:
    manual.commands.admission.door = anyio.Event()
    body = {"input_ids": [97], "request_id": "r"}
    async with AsgiCall(manual.app, "POST", "/submit", body) as call:
        while not manual.commands.admission.entering:
            await anyio.lowlevel.checkpoint()
        await abort(manual, rid="r")
        start, _ = await call.finished()

    assert start["status"] == 202
    assert (await manual.json("GET", "/result/r?timeout=10"))[1]["state"] == "aborted"
    assert manual.engine.generations == {}


async def test_what_ended_before_is_left_as_it_was(manual: Any) -> None:
    await manual.json("POST", "/submit", json={"input_ids": [97], "request_id": "r"})
    manual.engine.generations["r"].finish("length")
    await manual.json("GET", "/result/r?timeout=10")
    await abort(manual, rid="r")

    assert (await manual.json("GET", "/result/r"))[1]["state"] == "finished"


@pytest.mark.parametrize("sent", [{"rid": 3}, {"rid": ["a"]}, {"abort_all": "maybe"}])
async def test_a_wrong_body_is_a_400(manual: Any, sent: dict[str, object]) -> None:
    assert (await manual.client.post("/abort_request", json=sent)).status_code == 400
