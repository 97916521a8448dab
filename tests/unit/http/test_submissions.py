"""Requests that are submitted now and asked about later."""

import logging
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from hotswap.errors import Paused, QueueFull
from hotswap.http.submit_bodies import MAX_SUBMITTED
from hotswap.seams import (
    GenerateRequest,
    Generation,
    LogprobsWanted,
    SamplingParams,
    TokenLogprob,
)
from hotswap.testing.asgi_call import AsgiCall
from hotswap.testing.scripted_engine import ScriptedEngine, ScriptedGeneration


@pytest.fixture
def manual(serve: Callable[..., Any]) -> Any:
    return serve(engine=ScriptedEngine(reply=None))


async def submit(serving: Any, **body: object) -> str:
    status, reply = await serving.json("POST", "/submit", json={"input_ids": [97], **body})
    assert status == 202, reply
    assert set(reply) == {"request_id"}
    return str(reply["request_id"])


async def final(serving: Any, rid: str) -> tuple[int, Any]:
    reply: tuple[int, Any] = await serving.json("GET", f"/result/{rid}?timeout=10")
    return reply


def generation_of(serving: Any, rid: str) -> ScriptedGeneration:
    found: ScriptedGeneration = serving.engine.generations[rid]
    return found


def assert_nothing_is_left(serving: Any) -> None:
    assert len(serving.app.state.served.requests) == 0
    assert all(one.ended or one.aborted.is_set() for one in serving.engine.generations.values())


async def test_submit_poll_result(manual: Any) -> None:
    rid = await submit(manual, request_id="r", max_decode_steps=9)
    generation = generation_of(manual, "r")
    assert rid == "r"
    assert generation.request.sampling == SamplingParams(max_new_tokens=9)

    status, reply = await manual.json("GET", "/result/r")
    assert (status, reply) == (202, {"request_id": "r", "state": "running"})
    generation.emit(b"so")
    status, reply = await manual.json("GET", "/poll/r")
    while not reply["output_ids"]:
        status, reply = await manual.json("GET", "/poll/r")
    assert (status, reply["state"], reply["text"]) == (200, "running", "so")
    assert reply["meta_info"]["finish_reason"] is None

    generation.finish("length")
    status, reply = await final(manual, "r")
    assert (status, reply["state"], reply["text"], reply["output_ids"]) == (
        200,
        "finished",
        "so",
        list(b"so"),
    )
    meta = reply["meta_info"]
    assert (meta["id"], meta["request_id"], meta["beam_width"]) == ("r", "r", 1)
    assert meta["finish_reason"] == {"type": "length", "length": 2}
    assert (await manual.json("GET", "/result/r"))[1] == reply
    assert (await manual.json("GET", "/poll/r"))[1] == reply
    assert_nothing_is_left(manual)


async def test_a_request_without_an_id_gets_one(serving: Any) -> None:
    rids = [await submit(serving) for _ in range(3)]

    assert len(set(rids)) == 3
    assert (await final(serving, rids[2]))[0] == 200


async def test_text_and_sampling_parameters_and_the_other_name_of_the_id(serving: Any) -> None:
    await serving.json(
        "POST", "/submit", json={"text": "ab", "rid": "r", "sampling_params": {"top_k": 3}}
    )

    request = generation_of(serving, "r").request
    assert (request.input_ids, request.sampling.top_k) == ([97, 98], 3)


async def test_fields_without_effect_are_named_in_the_reply(serving: Any) -> None:
    await submit(serving, request_id="r", lora_path="x")
    one = {"input_ids": [97], "stream": True}
    requests = [one | {"request_id": "x"}, one | {"request_id": "y", "lora": 1}]
    await serving.json("POST", "/submit_many", json={"requests": requests})

    assert (await final(serving, "r"))[1]["meta_info"]["ignored"] == ["lora_path"]
    assert (await final(serving, "x"))[1]["meta_info"]["ignored"] == ["lora", "stream"]


async def test_sampling_parameters_without_effect_are_named_in_the_reply(serving: Any) -> None:
    await submit(serving, request_id="r", sampling_params={"max_tokens": 4, "seed": 1})
    one = {"input_ids": [97], "sampling_params": {"regex": "a"}}
    other = {"input_ids": [97], "sampling_params": {f"k{n:02}": n for n in range(20)}}
    requests = [one | {"request_id": "x"}, other | {"request_id": "y", "lora": 1}]
    await serving.json("POST", "/submit_many", json={"requests": requests})

    for path in ("/result/r?timeout=5", "/poll/r"):
        _, reply = await serving.json("GET", path)
        assert reply["meta_info"]["ignored"] == ["sampling_params.max_tokens"]
    named = (await final(serving, "x"))[1]["meta_info"]["ignored"]
    assert named == ["lora", *[f"sampling_params.k{n:02}" for n in range(15)]]


async def test_log_probabilities_are_in_every_reply_about_a_request(manual: Any) -> None:
    asked = {
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 1,
        "token_ids_logprob": [7],
        "return_text_in_logprobs": True,
    }
    await submit(manual, request_id="r", **asked)
    many = [{"text": "a", "request_id": "x", "return_logprob": True}, {"text": "b"}]
    status, reply = await manual.json("POST", "/submit_many", json={"requests": many})
    assert status == 202
    rids = reply["request_ids"]

    assert generation_of(manual, "r").request.logprobs == LogprobsWanted(
        input_start=0, top=1, token_ids=(7,)
    )
    assert [generation_of(manual, rid).request.logprobs for rid in rids] == [
        LogprobsWanted(),
        None,
    ]
    said = TokenLogprob(token_id=120, logprob=-0.5, top=((120, -0.5),), asked=((7, -9.0),))
    prompt = TokenLogprob(token_id=97, logprob=None)
    generation_of(manual, "r").emit_scored(said, inputs=(prompt,))
    _, so_far = await manual.json("GET", "/poll/r")
    while not so_far["output_ids"]:
        _, so_far = await manual.json("GET", "/poll/r")
    generation_of(manual, "r").finish("length")
    for reply in (so_far, (await final(manual, "r"))[1]):
        meta = reply["meta_info"]
        assert meta["input_token_logprobs"] == [[None, 97, "a"]]
        assert meta["output_token_logprobs"] == [[-0.5, 120, "x"]]
        assert meta["output_top_logprobs"] == [[[-0.5, 120, "x"]]]
        assert meta["output_token_ids_logprobs"] == [[[-9.0, 7, "\x07"]]]
        assert "ignored" not in meta


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "neither of text and input_ids"),
        ({"input_ids": []}, "input_ids is empty"),
        ({"input_ids": [[1], [2]]}, "$.input_ids[0]"),
        ({"text": ["a"]}, "$.text"),
        ({"text": "a", "return_logprob": [True]}, "$.return_logprob"),
        ({"text": "a", "return_logprob": True, "logprob_start_len": -2}, "logprob_start_len is -2"),
        ({"text": "a", "beam_width": 4}, "beam_width is 4, wanted 1"),
        ({"text": "a", "sampling_params": {"n": 2}}, "n is 2, wanted 1"),
        ({"text": "a", "max_decode_steps": 0}, "$.max_decode_steps"),
        ({"text": "a", "request_id": ""}, "rid is empty"),
        ({"input_ids": [256]}, "outside 0 to 255"),
    ],
)
async def test_a_wrong_request_is_a_400_and_leaves_nothing(
    serving: Any, body: dict[str, object], named: str
) -> None:
    for path, sent, prefix in (
        ("/submit", body, ""),
        ("/submit_many", {"requests": [body, {"text": "a", "rid": "x"}]}, "requests[0]: "),
    ):
        status, reply = await serving.json("POST", path, json=sent)
        assert (status, reply["error"]["code"]) == (400, "validation_error")
        assert named in reply["error"]["message"]
        if "outside" not in named and "rid is" not in named:
            assert prefix in reply["error"]["message"]
    assert (await serving.json("GET", "/requests"))[1] == {"requests": [], "count": 0}
    assert_nothing_is_left(serving)


async def test_an_id_is_taken_while_it_runs_and_while_its_result_is_kept(manual: Any) -> None:
    await submit(manual, request_id="r")
    for _ in range(2):
        for path in ("/submit", "/submit_many"):
            one = {"request_id": "r", "input_ids": [1]}
            body = one if path == "/submit" else {"requests": [{"input_ids": [1]}, one]}
            status, reply = await manual.json("POST", path, json=body)
            assert (status, reply["error"]["code"]) == (409, "duplicate_request_id")
        generation_of(manual, "r").finish("length")
        assert (await final(manual, "r"))[0] == 200

    assert (await manual.json("GET", "/requests"))[1]["count"] == 1
    assert_nothing_is_left(manual)


async def test_many_are_taken_in_order(serving: Any) -> None:
    requests = [{"input_ids": [97], "request_id": f"r{n}"} for n in range(MAX_SUBMITTED)]
    status, reply = await serving.json("POST", "/submit_many", json={"requests": requests})

    assert status == 202
    assert reply == {"request_ids": [f"r{n}" for n in range(MAX_SUBMITTED)]}
    for rid in reply["request_ids"]:
        assert (await final(serving, rid))[1]["text"] == "ok"


@pytest.mark.parametrize(
    ("requests", "status", "code"),
    [
        ([{"input_ids": [1]}] * (MAX_SUBMITTED + 1), 413, "too_many_requests"),
        ([], 400, "validation_error"),
        ([3], 400, "validation_error"),
        (None, 400, "validation_error"),
        ([{"input_ids": [1], "rid": "x"}] * 2, 409, "duplicate_request_id"),
    ],
)
async def test_many_are_refused_as_one(
    serving: Any, requests: object, status: int, code: str
) -> None:
    seen, reply = await serving.json("POST", "/submit_many", json={"requests": requests})

    assert (seen, reply["error"]["code"]) == (status, code)
    assert serving.engine.generations == {}
    assert (await serving.json("GET", "/requests"))[1]["count"] == 0


async def test_a_queue_without_room_for_all_takes_none(serve: Callable[..., Any]) -> None:
    class Narrow(ScriptedEngine):
        def submit(self, request: GenerateRequest) -> Generation:
            if len(self.generations) == 2:
                raise QueueFull("2 requests wait already")
            return super().submit(request)

    serving = serve(engine=Narrow(reply=None))
    requests = [{"input_ids": [1], "rid": f"r{n}"} for n in range(3)]
    status, reply = await serving.json("POST", "/submit_many", json={"requests": requests})

    assert (status, reply["error"]["code"]) == (429, "overloaded")
    assert (await serving.json("GET", "/requests"))[1]["count"] == 0
    assert_nothing_is_left(serving)


async def test_a_pause_refuses_at_once_where_requests_are_rejected(serving: Any) -> None:
    serving.commands.admission.refusal = Paused("retry shortly")

    for path, body in (
        ("/submit", {"input_ids": [1]}),
        ("/submit_many", {"requests": [{"input_ids": [1]}]}),
    ):
        status, reply = await serving.json("POST", path, json=body)
        assert (status, reply["error"]["code"]) == (503, "paused")
    assert (await serving.json("GET", "/requests"))[1]["count"] == 0


async def test_a_held_request_is_seen_and_accepted_when_the_door_opens(manual: Any) -> None:
    door = manual.commands.admission.door = anyio.Event()
    body = {"input_ids": [97], "request_id": "r"}
    async with AsgiCall(manual.app, "POST", "/submit", body) as call:
        while not manual.commands.admission.entering:
            await anyio.lowlevel.checkpoint()
        assert (await manual.json("GET", "/poll/r"))[1]["state"] == "waiting"
        assert (await manual.json("GET", "/result/r"))[0] == 202
        door.set()
        start, _ = await call.finished()
    assert start["status"] == 202
    generation_of(manual, "r").finish("length")
    assert (await final(manual, "r"))[1]["state"] == "finished"


async def test_a_client_that_leaves_before_it_is_accepted_has_submitted_nothing(
    manual: Any,
) -> None:
    manual.commands.admission.door = anyio.Event()
    body = {"input_ids": [97], "request_id": "r"}
    async with AsgiCall(manual.app, "POST", "/submit", body) as call:
        while not manual.commands.admission.entering:
            await anyio.lowlevel.checkpoint()
        async with AsgiCall(manual.app, "GET", "/result/r") as waiting:
            call.disconnect()
            await call.finished()
            await waiting.finished()

    assert (await manual.json("GET", "/poll/r"))[0] == 404
    assert manual.engine.generations == {}
    assert_nothing_is_left(manual)


async def test_a_request_outlives_the_connection_that_submitted_it(manual: Any) -> None:
    body = {"input_ids": [97], "request_id": "r"}
    async with AsgiCall(manual.app, "POST", "/submit", body) as call:
        assert (await call.next_message())["status"] == 202
        call.disconnect()
        await call.finished()
    generation = generation_of(manual, "r")

    assert not generation.aborted.is_set()
    generation.finish("length")
    assert (await final(manual, "r"))[1]["state"] == "finished"


async def test_cancel_ends_a_request_with_what_it_has(manual: Any) -> None:
    await submit(manual, request_id="r")
    generation_of(manual, "r").emit(b"ha")
    status, reply = await manual.json("POST", "/cancel", json={"request_id": "r"})
    assert (status, reply) == (200, {"request_id": "r", "cancelled": True})

    status, reply = await final(manual, "r")
    assert (status, reply["state"], reply["text"]) == (200, "aborted", "ha")
    assert reply["meta_info"]["finish_reason"]["type"] == "abort"
    status, reply = await manual.json("POST", "/cancel", json={"rid": "r"})
    assert (status, reply["cancelled"], reply["state"]) == (200, False, "aborted")


async def test_cancel_of_what_is_not_there(serving: Any) -> None:
    assert (await serving.json("POST", "/cancel", json={"request_id": "x"}))[0] == 404
    assert (await serving.json("POST", "/cancel", json={}))[0] == 400


@pytest.mark.parametrize("path", ["/poll/x", "/result/x", "/requests/x", "/poll/", "/result/a/b"])
async def test_an_unknown_id_is_a_404(serving: Any, path: str) -> None:
    status, reply = await serving.json("GET", path)

    assert (status, reply["error"]["code"]) == (404, "not_found")


async def test_an_id_may_have_slashes_in_it(serving: Any) -> None:
    rid = await submit(serving, request_id="group/7 a")

    assert (await final(serving, rid))[1]["request_id"] == "group/7 a"


async def test_a_failed_request_says_so_for_good(
    manual: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await submit(manual, request_id="r")
    with caplog.at_level(logging.CRITICAL, logger="hotswap.http"):
        generation_of(manual, "r").finish("error")
        for _ in range(2):
            status, reply = await final(manual, "r")
            assert (status, reply["error"]["code"]) == (500, "internal_error")
    status, reply = await manual.json("GET", "/poll/r")
    assert (status, reply["state"], reply["request_id"]) == (200, "failed", "r")
    assert_nothing_is_left(manual)


async def test_a_failed_request_says_why(manual: Any, caplog: pytest.LogCaptureFixture) -> None:
    await submit(manual, request_id="r")
    with caplog.at_level(logging.WARNING, logger="hotswap.http"):
        generation_of(manual, "r").finish("error", error="its logits are not finite")
        status, reply = await final(manual, "r")
    assert (status, reply["state"]) == (500, "failed")
    assert reply["error"]["code"] == "generation_failed"
    assert reply["error"]["message"] == "request r ended: its logits are not finite"
    (record,) = caplog.records
    assert record.exc_info is None


async def test_a_wait_for_a_result_ends_when_its_time_is_up(manual: Any) -> None:
    await submit(manual, request_id="r")
    assert (await manual.json("GET", "/result/r?timeout=0.01"))[0] == 202
    for bad in ("-1", "301", "inf", "x"):
        assert (await manual.json("GET", f"/result/r?timeout={bad}"))[0] == 400


async def test_the_list_has_submitted_and_other_requests(manual: Any) -> None:
    await submit(manual, request_id="s")
    async with AsgiCall(manual.app, "POST", "/generate", {"text": ["a", "b"], "rid": "g"}):
        while "g_1" not in manual.engine.generations:
            await anyio.lowlevel.checkpoint()
        status, reply = await manual.json("GET", "/requests")
        one = (await manual.json("GET", "/requests/g_1"))[1]
        cancelled = (await manual.json("POST", "/cancel", json={"request_id": "g"}))[1]

    assert status == 200
    assert {(row["request_id"], row["state"], row["route"]) for row in reply["requests"]} == {
        ("s", "running", "submit"),
        ("g_0", "running", "generate"),
        ("g_1", "running", "generate"),
    }
    assert one == {"request_id": "g_1", "state": "running", "route": "generate"}
    assert cancelled == {"request_id": "g", "cancelled": True}
    assert generation_of(manual, "g_1").aborted.is_set()


async def test_a_shutdown_ends_submitted_requests_and_keeps_their_results(manual: Any) -> None:
    await submit(manual, request_id="r")
    manual.app.state.served.requests.close()

    assert (await final(manual, "r"))[1]["state"] == "aborted"
    status, reply = await manual.json("POST", "/submit", json={"input_ids": [1]})
    assert (status, reply["error"]["code"]) == (503, "shutting_down")
