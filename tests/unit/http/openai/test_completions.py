import json
from collections.abc import Callable
from typing import Any

import pytest

from hotswap.errors import Paused, QueueFull
from hotswap.seams import LogprobsWanted, SamplingParams, TokenChunk, TokenLogprob
from hotswap.testing.asgi_call import AsgiCall
from hotswap.testing.scripted_engine import ScriptedEngine, ScriptedGeneration
from hotswap.types import WeightStamp

PATH = "/v1/completions"


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_a_whole_reply(serving: Any) -> None:
    serving.engine.stamp = WeightStamp(version="7", epoch=3)
    status, body = await serving.json("POST", PATH, json={"prompt": "hey", "rid": "r", "user": "u"})

    span = {"version": "7", "weight_epoch": 3, "start": 0, "end": 2}
    metadata = {
        "weight_version": "7",
        "weight_version_start": "7",
        "weight_version_end": "7",
        "weight_epoch": 3,
        "weight_versions": [span],
        "ignored": ["user"],
    }
    assert status == 200
    assert body.pop("created") > 1_600_000_000
    assert body == {
        "id": "r",
        "object": "text_completion",
        "model": "/models/a",
        "choices": [
            {
                "index": 0,
                "text": "ok",
                "logprobs": None,
                "finish_reason": "length",
                "metadata": metadata,
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "metadata": metadata,
    }


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        ("ab", [[97, 98]]),
        (["a", "5"], [[97], [53]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
    ],
)
async def test_every_form_of_prompt(serving: Any, prompt: object, wanted: list[list[int]]) -> None:
    status, body = await serving.json("POST", PATH, json={"prompt": prompt, "rid": "r", "n": 2})

    total = 2 * len(wanted)
    asked = [serving.engine.generations[f"r_{at}"].request.input_ids for at in range(total)]
    assert status == 200
    assert asked == [ids for ids in wanted for _ in range(2)]
    assert [choice["index"] for choice in body["choices"]] == list(range(total))
    assert body["usage"]["prompt_tokens"] == sum(map(len, wanted))
    assert body["usage"]["completion_tokens"] == 2 * total
    assert len(serving.app.state.served.requests) == 0


async def test_sampling_reaches_the_engine(serving: Any) -> None:
    fields = {
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "frequency_penalty": 0.1,
        "presence_penalty": -0.2,
        "seed": 3,
        "stop": ["END", ""],
        "top_k": 4,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "min_tokens": 2,
        "stop_token_ids": [9],
        "ignore_eos": True,
        "logprobs": 2,
        "echo": True,
        "n": 2,
        "best_of": 2,
    }
    await serving.json("POST", PATH, json={"prompt": "a", "rid": "r", **fields})

    first, second = (serving.engine.generations[f"r_{at}"].request for at in range(2))
    assert first.sampling == SamplingParams(
        max_new_tokens=7,
        min_new_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        min_p=0.05,
        frequency_penalty=0.1,
        presence_penalty=-0.2,
        repetition_penalty=1.1,
        seed=3,
        stop=("END",),
        stop_token_ids=(9,),
        ignore_eos=True,
    )
    assert second.sampling.seed not in (None, 3)
    assert first.logprobs == LogprobsWanted(input_start=0, top=2)


async def test_the_defaults_are_openais(serving: Any) -> None:
    await serving.json("POST", PATH, json={"prompt": "a", "rid": "r"})
    request = serving.engine.generations["r"].request
    assert request.sampling == SamplingParams(max_new_tokens=16, temperature=1.0)
    assert request.logprobs is None


@pytest.mark.parametrize(
    ("body", "param", "named"),
    [
        ({}, "prompt", "required field `prompt`"),
        ({"prompt": []}, "prompt", "empty list"),
        ({"prompt": [[]]}, "prompt", "empty list"),
        ({"prompt": ["a", 1]}, "prompt", "mixes"),
        ({"prompt": ""}, None, "no tokens"),
        ({"prompt": [300]}, None, "outside 0 to 255"),
        ({"prompt": "a", "temperature": "hot"}, "temperature", "float"),
        ({"prompt": "a", "temperature": -1}, "temperature", ">= 0"),
        ({"prompt": "a", "presence_penalty": 3}, "presence_penalty", "<= 2"),
        ({"prompt": "a", "n": 0}, "n", ">= 1"),
        ({"prompt": ["a"] * 129, "n": 2}, "n", "at most 256"),
        ({"prompt": "a", "best_of": 2}, "best_of", "leave best_of out"),
        ({"prompt": "a", "suffix": "x"}, "suffix", "not supported"),
        ({"prompt": "a", "logit_bias": {"5": 1}}, "logit_bias", "not supported"),
        (
            {"prompt": "a", "response_format": {"type": "json_object"}},
            "response_format",
            "only text",
        ),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", "echo"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", "<= 20"),
        ({"prompt": "a", "stop": [str(at) for at in range(65)]}, None, "at most 64"),
        ({"prompt": "a", "rid": ""}, "rid", "length"),
    ],
)
async def test_a_bad_request_is_openais_400(
    serving: Any, body: dict[str, object], param: str | None, named: str
) -> None:
    status, reply = await serving.json("POST", PATH, json=body)

    assert status == 400
    error = reply["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", "validation_error")
    assert error["param"] == param
    assert named in error["message"]
    assert len(serving.app.state.served.requests) == 0
    assert serving.engine.in_flight.running == 0


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "status", "kind", "code"),
    [
        (QueueFull("9 wait"), 429, "rate_limit_error", "overloaded"),
        (Paused("paused"), 503, "server_error", "paused"),
    ],
)
async def test_a_refusal_has_its_status_in_every_dialect(
    serve: Callable[..., Any],
    dialect: str,
    stream: bool,
    refusal: Exception,
    status: int,
    kind: str,
    code: str,
) -> None:
    serving = serve(dialect=dialect)
    serving.commands.admission.refusal = refusal

    seen, body = await serving.json("POST", PATH, json={"prompt": "a", "stream": stream})

    assert seen == status
    assert body == {"error": {"message": str(refusal), "type": kind, "param": None, "code": code}}


async def test_what_the_router_and_the_gate_refuse_is_in_the_envelope_too(serving: Any) -> None:
    status, body = await serving.json("GET", PATH)
    assert (status, body["error"]["code"]) == (405, "method_not_allowed")
    assert body["error"]["message"].endswith("send POST")

    big = "x" * (serving.app.state.served.settings.max_http_request_bytes + 1)
    status, body = await serving.json("POST", PATH, json={"prompt": big})
    assert (status, body["error"]["code"]) == (413, "payload_too_large")


async def test_a_stream_brings_what_is_new(serve: Callable[..., Any]) -> None:
    serving = serve(engine=ScriptedEngine(reply="né".encode()))
    options = {"stream": True, "stream_options": {"include_usage": True}, "echo": True}
    reply = await serving.client.post(PATH, json={"prompt": "a>", **options})

    *pieces, last = events(reply.text)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert [piece["choices"][0]["text"] for piece in pieces] == ["a>", "n", "é", ""]
    assert [piece["choices"][0]["finish_reason"] for piece in pieces] == [None] * 3 + ["length"]
    assert {piece["object"] for piece in pieces} == {"text_completion"}
    assert len({piece["id"] for piece in [*pieces, last]}) == 1
    assert all(piece["usage"] is None for piece in pieces)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 5


async def test_choices_of_a_stream_say_which_they_are(serving: Any) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "stream": True}
    reply = await serving.client.post(PATH, json=body)

    texts = ["", "", "", ""]
    for event in events(reply.text):
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["text"]
        assert "usage" not in event
    assert texts == ["ok"] * 4


async def test_a_stop_string_is_never_shown(serve: Callable[..., Any]) -> None:
    serving = serve(engine=ScriptedEngine(reply=None))
    body = {"prompt": "a", "rid": "r", "stop": "END", "stream": True}
    async with AsgiCall(serving.app, "POST", PATH, body) as call:
        await serving.engine.submitted.wait()
        generation = serving.engine.generations["r"]
        generation.emit(b"xEND")
        generation.finish("stop", matched="END")
        seen = []
        while (event := await call.next_event()) != "[DONE]":
            seen.append(event["choices"][0])
    assert "".join(choice["text"] for choice in seen) == "x"
    assert seen[-1]["finish_reason"] == "stop"


async def test_metadata_across_a_swap(serve: Callable[..., Any]) -> None:
    serving = serve(engine=ScriptedEngine(reply=None))
    old, new = WeightStamp(version="a", epoch=1), WeightStamp(version="b", epoch=2)
    body = {"prompt": ["p", "q"], "rid": "r"}
    async with AsgiCall(serving.app, "POST", PATH, body) as call:
        await serving.engine.submitted.wait()
        first, second = (serving.engine.generations[f"r_{at}"] for at in range(2))
        first.emit(b"abc", stamp=old)
        first.emit(b"de", stamp=new)
        first.finish("length")
        second.emit(b"f", stamp=new)
        second.finish("abort")
        _, message = await call.finished()

    reply = json.loads(message["body"])
    assert reply["metadata"] == {
        "weight_version": "b",
        "weight_version_start": "a",
        "weight_version_end": "b",
        "weight_epoch": 2,
    }
    one, other = reply["choices"]
    assert one["metadata"]["weight_versions"] == [
        {"version": "a", "weight_epoch": 1, "start": 0, "end": 3},
        {"version": "b", "weight_epoch": 2, "start": 3, "end": 5},
    ]
    assert other["metadata"]["weight_version_start"] == "b"
    assert (one["finish_reason"], other["finish_reason"]) == ("length", "abort")


async def test_a_client_that_leaves_aborts_every_choice(serve: Callable[..., Any]) -> None:
    serving = serve(engine=ScriptedEngine(reply=None))
    body = {"prompt": "a", "rid": "r", "n": 2}
    async with AsgiCall(serving.app, "POST", PATH, body) as call:
        await serving.engine.submitted.wait()
        generations = [serving.engine.generations[f"r_{at}"] for at in range(2)]
        call.disconnect()
        assert await call.finished() == []
    assert all(generation.aborted.is_set() for generation in generations)
    assert len(serving.app.state.served.requests) == 0


async def test_an_engine_error_is_told_in_the_stream(serve: Callable[..., Any]) -> None:
    serving = serve(engine=ScriptedEngine(reply=None))
    body = {"prompt": "a", "rid": "r", "stream": True}
    async with AsgiCall(serving.app, "POST", PATH, body) as call:
        await serving.engine.submitted.wait()
        serving.engine.generations["r"].finish("error")
        error = await call.next_event()
        done = await call.next_event()
    assert error["error"]["type"] == "server_error"
    assert error["error"]["code"] == "internal_error"
    assert done == "[DONE]"


async def test_an_engine_error_is_a_500(serve: Callable[..., Any]) -> None:
    serving = serve(engine=ScriptedEngine(reply=None))
    async with AsgiCall(serving.app, "POST", PATH, {"prompt": "a", "rid": "r"}) as call:
        await serving.engine.submitted.wait()
        serving.engine.generations["r"].finish("error")
        start, body = await call.finished()
    assert start["status"] == 500
    assert json.loads(body["body"])["error"]["type"] == "server_error"


class Scoring(ScriptedEngine):
    """Scores every token: -token/100, and one rival of each."""

    def submit(self, request: Any) -> Any:
        generation = super().submit(request)
        assert isinstance(generation, ScriptedGeneration)
        inputs = [self._score(token, first=at == 0) for at, token in enumerate(request.input_ids)]
        wanted = request.logprobs
        shown = tuple(inputs) if wanted is not None and wanted.input_start == 0 else ()
        for number, token in enumerate(b"h\xc3\xa9"):
            chunk = TokenChunk(
                token_id=token,
                stamp=self.stamp,
                logprob=self._score(token) if wanted is not None else None,
                input_logprobs=shown if number == 0 else (),
            )
            generation._chunks.put_nowait(chunk)
        generation.finish("length")
        return generation

    def _score(self, token: int, *, first: bool = False) -> TokenLogprob:
        likely = -float("inf") if token == 0xA9 else -token / 100
        return TokenLogprob(
            token_id=token,
            logprob=None if first else likely,
            top=() if first else ((token, likely), (33, -5.0)),
        )


LOGPROBS = {
    "tokens": ["a", "b", "h", "token_id:195", "token_id:169"],
    "token_logprobs": [None, -0.98, -1.04, -1.95, -9999.0],
    "top_logprobs": [
        None,
        {"b": -0.98, "!": -5.0},
        {"h": -1.04, "!": -5.0},
        {"token_id:195": -1.95, "!": -5.0},
        {"token_id:169": -9999.0, "!": -5.0},
    ],
    "text_offset": [0, 1, 2, 3, 3],
}


async def test_logprobs_of_an_echo(serve: Callable[..., Any]) -> None:
    serving = serve(engine=Scoring(reply=None))
    body = {"prompt": "ab", "logprobs": 1, "echo": True}
    _, reply = await serving.json("POST", PATH, json=body)

    assert reply["choices"][0]["text"] == "abhé"
    assert reply["choices"][0]["logprobs"] == LOGPROBS


async def test_logprobs_of_a_stream_follow_each_other(serve: Callable[..., Any]) -> None:
    serving = serve(engine=Scoring(reply=None))
    body = {"prompt": "ab", "logprobs": 1, "echo": True, "stream": True}
    reply = await serving.client.post(PATH, json=body)

    seen: dict[str, list[Any]] = {name: [] for name in LOGPROBS}
    for event in events(reply.text):
        for name, values in (event["choices"][0]["logprobs"] or {}).items():
            seen[name] += values
    assert seen == LOGPROBS


async def test_without_a_tokenizer_token_ids_are_served(serve: Callable[..., Any]) -> None:
    serving = serve(engine=ScriptedEngine(tokenizer=False))
    status, body = await serving.json("POST", PATH, json={"prompt": [1, 2], "echo": True})
    assert (status, body["choices"][0]["text"]) == (200, "")
    assert body["usage"]["completion_tokens"] == 2
    status, body = await serving.json("POST", PATH, json={"prompt": "a"})
    assert (status, "no tokenizer" in body["error"]["message"]) == (400, True)
