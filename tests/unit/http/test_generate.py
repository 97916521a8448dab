import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from hotswap.errors import Paused, QueueFull, WeightsNotWhole
from hotswap.seams import SamplingParams
from hotswap.testing.asgi_call import AsgiCall
from hotswap.testing.scripted_engine import ScriptedEngine
from hotswap.types import WeightStamp

META_KEYS = {
    "id",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "num_retractions",
    "e2e_latency",
    "weight_version",
    "weight_version_start",
    "weight_version_end",
    "weight_versions",
    "weight_epoch",
}


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("prompt", [{"text": "hey"}, {"input_ids": [104, 101, 121]}])
async def test_a_whole_reply(serving: Any, method: str, prompt: dict[str, object]) -> None:
    status, body = await serving.json(method, "/generate", json={**prompt, "rid": "r1"})

    assert status == 200
    assert set(body) == {"text", "output_ids", "meta_info"}
    assert (body["text"], body["output_ids"]) == ("ok", [111, 107])
    meta = body["meta_info"]
    assert set(meta) == META_KEYS | {"request_id", "token_ids", "beam_width", "beam_results"}
    assert (meta["request_id"], meta["token_ids"], meta["beam_width"]) == ("r1", [111, 107], 1)
    ended = {"finish_reason": "length", "sequence_score": None}
    assert meta["beam_results"] == [{"output_ids": [111, 107], "text": "", "meta_info": ended}]
    assert meta["id"] == "r1"
    assert meta["finish_reason"] == {"type": "length", "length": 2}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (3, 2)
    assert meta["weight_versions"] == [{"version": None, "weight_epoch": 0, "start": 0, "end": 2}]
    assert meta["e2e_latency"] >= 0
    assert serving.engine.generations["r1"].request.input_ids == [104, 101, 121]


async def test_sampling_parameters_reach_the_engine(serving: Any) -> None:
    sampling = {
        "max_new_tokens": "7",
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": -1,
        "sampling_seed": 3,
        "stop": "END",
        "stop_token_ids": [2],
        "ignore_eos": "true",
        "min_new_tokens": 2,
        "min_p": 0.1,
        "frequency_penalty": "0.5",
        "presence_penalty": -1,
        "repetition_penalty": 1.2,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "unheard_of": 1,
    }
    await serving.json(
        "POST", "/generate", json={"text": "a", "rid": "r", "sampling_params": sampling}
    )

    assert serving.engine.generations["r"].request.sampling == SamplingParams(
        max_new_tokens=7,
        temperature=0.5,
        top_p=0.9,
        top_k=0,
        seed=3,
        stop=("END",),
        stop_token_ids=(2,),
        ignore_eos=True,
        min_new_tokens=2,
        min_p=0.1,
        frequency_penalty=0.5,
        presence_penalty=-1.0,
        repetition_penalty=1.2,
        skip_special_tokens=False,
    )


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
async def test_the_other_name_of_the_id(serve: Callable[..., Any], dialect: str) -> None:
    serving = serve(dialect=dialect)
    for named in ({"request_id": "r"}, {"request_id": "r", "rid": "x"}):
        _, one = await serving.json("POST", "/generate", json={"text": "a", **named})
        assert (one["meta_info"]["id"], "ignored" in one["meta_info"]) == ("r", False)
    ids = {"text": ["a", "b"], "request_id": ["x", "y"]}
    _, each = await serving.json("POST", "/generate", json=ids)
    assert [reply["meta_info"]["id"] for reply in each] == ["x", "y"]


async def test_requests_without_an_id_get_different_ones(serving: Any) -> None:
    ids = {
        (await serving.json("POST", "/generate", json={"text": "a"}))[1]["meta_info"]["id"]
        for _ in range(3)
    }

    assert len(ids) == 3


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "neither of text and input_ids"),
        ({"text": "a", "input_ids": [1]}, "both of text and input_ids"),
        ({"text": ""}, "no tokens"),
        ({"input_ids": []}, "input_ids is empty"),
        ({"input_ids": ["x"]}, "$.input_ids[0]"),
        ({"input_ids": [256]}, "outside 0 to 255"),
        ({"text": 3}, "$.text"),
        ({"text": "a", "rid": ""}, "rid is empty"),
        ({"text": "a", "stream": "maybe"}, "$.stream"),
        ({"text": "a", "sampling_params": []}, "sampling_params is a list of 0"),
        ({"text": "a", "sampling_params": "x"}, "$.sampling_params"),
        ({"text": "a", "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "temperature"),
        ({"text": "a", "sampling_params": {"temperature": "inf"}}, "temperature"),
        ({"text": "a", "sampling_params": {"top_p": 0}}, "top_p"),
        ({"text": "a", "sampling_params": {"n": 0}}, "$.sampling_params.n"),
    ],
)
async def test_a_bad_request_names_what_is_wrong(
    serving: Any, body: dict[str, object], named: str
) -> None:
    status, reply = await serving.json("POST", "/generate", json=body)

    assert status == 400
    assert set(reply) == {"error"}
    assert reply["error"]["code"] == "validation_error"
    assert named in reply["error"]["message"]
    assert not reply["error"]["retryable"]
    assert len(serving.app.state.served.requests) == 0


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (Paused("generation is paused for a weight update; retry shortly"), "paused"),
        (WeightsNotWhole("send a full update"), "weights_not_whole"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_closed_door_is_a_503_at_once(
    serving: Any, refusal: Exception, code: str, stream: bool
) -> None:
    serving.commands.admission.refusal = refusal

    status, body = await serving.json("POST", "/generate", json={"text": "a", "stream": stream})

    assert status == 503
    assert body == {
        "error": {"code": code, "message": str(refusal), "retryable": True, "status": 503}
    }
    assert serving.engine.generations == {}


async def test_a_full_queue_is_a_429(serving: Any) -> None:
    serving.commands.admission.refusal = QueueFull("9 requests wait already")
    status, body = await serving.json("POST", "/generate", json={"text": "a"})

    assert (status, body["error"]["code"], body["error"]["retryable"]) == (429, "overloaded", True)


async def test_a_dead_engine_takes_no_request(serving: Any) -> None:
    serving.engine.alive = False
    status, body = await serving.json("POST", "/generate", json={"text": "a"})

    assert (status, body["error"]["code"]) == (503, "engine_not_running")


async def test_no_tokenizer_means_no_text(serve: Callable[..., Any]) -> None:
    serving = serve(engine=ScriptedEngine(tokenizer=False))

    status, body = await serving.json("POST", "/generate", json={"input_ids": [1]})
    assert (status, body["text"], body["output_ids"]) == (200, "", [111, 107])

    status, body = await serving.json("POST", "/generate", json={"text": "a"})
    assert status == 400
    assert "no tokenizer" in body["error"]["message"]


async def test_a_long_text_is_encoded_like_a_short_one(serving: Any) -> None:
    text = "x" * 10_000

    _, body = await serving.json("POST", "/generate", json={"text": text})

    assert body["meta_info"]["prompt_tokens"] == 10_000


@pytest.mark.parametrize(
    ("reason", "matched", "text", "wanted"),
    [
        ("stop", "k", "o", {"type": "stop", "matched": "k"}),
        ("stop", 107, "o", {"type": "stop", "matched": 107}),
        ("stop", 2, "ok", {"type": "stop", "matched": 2}),
        ("length", None, "ok", {"type": "length", "length": 2}),
        (
            "abort",
            None,
            "ok",
            {
                "type": "abort",
                "message": "the request was aborted",
                "status_code": None,
                "err_type": None,
            },
        ),
    ],
)
async def test_finish_reasons(
    serve: Callable[..., Any], reason: str, matched: object, text: str, wanted: object
) -> None:
    serving = serve(engine=ScriptedEngine(reply=None))
    async with AsgiCall(serving.app, "POST", "/generate", {"text": "a", "rid": "r"}) as call:
        await serving.engine.submitted.wait()
        generation = serving.engine.generations["r"]
        generation.emit(b"ok")
        generation.finish(reason, matched=matched, cached=5)
        start, body = await call.finished()

    reply = decoded(body)
    assert start["status"] == 200
    assert (reply["text"], reply["output_ids"]) == (text, [111, 107])
    assert reply["meta_info"]["finish_reason"] == wanted
    assert reply["meta_info"]["cached_tokens"] == 5


async def test_an_abort_in_the_engine_s_queue_says_so(serve: Callable[..., Any]) -> None:
    serving = serve(engine=ScriptedEngine(reply=None))
    async with AsgiCall(serving.app, "POST", "/generate", {"text": "a", "rid": "r"}) as call:
        await serving.engine.submitted.wait()
        serving.engine.generations["r"].abort()
        _, body = await call.finished()

    assert decoded(body)["meta_info"]["finish_reason"]["message"] == "Abort in waiting queue"


async def test_spans_across_an_update(serve: Callable[..., Any]) -> None:
    serving = serve(engine=ScriptedEngine(reply=None))
    old, new = WeightStamp(version="a", epoch=1), WeightStamp(version="b", epoch=2)
    async with AsgiCall(serving.app, "POST", "/generate", {"text": "a", "rid": "r"}) as call:
        await serving.engine.submitted.wait()
        generation = serving.engine.generations["r"]
        generation.emit(b"abc", stamp=old)
        generation.emit(b"de", stamp=new)
        generation.finish("length")
        _, body = await call.finished()

    meta = decoded(body)["meta_info"]
    assert meta["weight_versions"] == [
        {"version": "a", "weight_epoch": 1, "start": 0, "end": 3},
        {"version": "b", "weight_epoch": 2, "start": 3, "end": 5},
    ]
    assert (meta["weight_version_start"], meta["weight_version_end"]) == ("a", "b")
    assert (meta["weight_version"], meta["weight_epoch"]) == ("b", 2)


async def test_an_abort_before_the_first_token_names_the_weights_too(
    serve: Callable[..., Any],
) -> None:
    serving = serve(engine=ScriptedEngine(reply=None))
    serving.engine.stamp = WeightStamp(version="a", epoch=4)
    async with AsgiCall(serving.app, "POST", "/generate", {"text": "a", "rid": "r"}) as call:
        await serving.engine.submitted.wait()
        serving.engine.generations["r"].abort()
        _, body = await call.finished()

    meta = decoded(body)["meta_info"]
    assert (meta["weight_version"], meta["weight_epoch"]) == ("a", 4)
    assert meta["weight_version_start"] == meta["weight_version_end"] == "a"
    assert meta["weight_versions"] == []


async def test_an_engine_error_is_a_500(serve: Callable[..., Any]) -> None:
    serving = serve(engine=ScriptedEngine(reply=None))
    async with AsgiCall(serving.app, "POST", "/generate", {"text": "a", "rid": "r"}) as call:
        await serving.engine.submitted.wait()
        serving.engine.generations["r"].finish("error")
        start, body = await call.finished()

    assert start["status"] == 500
    assert decoded(body)["error"]["code"] == "internal_error"


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
async def test_an_engine_error_that_says_why_is_told_without_a_traceback(
    serve: Callable[..., Any], caplog: pytest.LogCaptureFixture, dialect: str
) -> None:
    serving = serve(engine=ScriptedEngine(reply=None), dialect=dialect)
    with caplog.at_level(logging.WARNING, logger="hotswap.http"):
        async with AsgiCall(serving.app, "POST", "/generate", {"text": "a", "rid": "r"}) as call:
            await serving.engine.submitted.wait()
            serving.engine.generations["r"].finish("error", error="its logits are not finite")
            start, body = await call.finished()

    assert start["status"] == 500
    error = decoded(body)["error"]
    assert error["message"] == "request r ended: its logits are not finite"
    assert error["code"] == ("generation_failed" if dialect == "gr" else 500)
    assert error["retryable"] is False
    (record,) = caplog.records
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert "its logits are not finite" in record.getMessage()


@pytest.mark.parametrize(
    ("sampling", "named"),
    [
        ({"max_tokens": 4, "regex": "a+", "top_k": 1}, ["max_tokens", "regex"]),
        ([{"logit_bias": {}}, {"json_schema": "{}"}], ["json_schema", "logit_bias"]),
        ({"regex": None, "max_new_tokens": 3}, []),
    ],
)
async def test_sampling_parameters_without_effect_are_named(
    serving: Any, sampling: object, named: list[str]
) -> None:
    text = ["a", "b"] if isinstance(sampling, list) else "a"
    request = {"text": text, "sampling_params": sampling}
    wanted = [f"sampling_params.{name}" for name in named]
    status, body = await serving.json("POST", "/generate", json=request)
    assert status == 200
    for one in body if isinstance(body, list) else [body]:
        assert one["meta_info"].get("ignored", []) == wanted

    async with AsgiCall(serving.app, "POST", "/generate", request | {"stream": True}) as call:
        assert (await call.next_event())["meta_info"].get("ignored", []) == wanted


async def test_an_id_in_flight_is_refused_and_free_again_afterwards(
    serve: Callable[..., Any],
) -> None:
    serving = serve(engine=ScriptedEngine(reply=None))
    async with AsgiCall(serving.app, "POST", "/generate", {"text": "a", "rid": "r"}) as call:
        await serving.engine.submitted.wait()
        first = serving.engine.generations["r"]

        status, body = await serving.json("POST", "/generate", json={"text": "b", "rid": "r"})
        assert (status, body["error"]["code"]) == (409, "duplicate_request_id")
        assert "duplicate request id 'r'" in body["error"]["message"]
        assert serving.engine.generations["r"] is first

        first.finish("length")
        await call.finished()

    serving.engine.reply = b"ok"
    status, _ = await serving.json("POST", "/generate", json={"text": "b", "rid": "r"})
    assert status == 200


def decoded(message: Any) -> Any:
    return json.loads(message["body"])
