import json
from collections.abc import Callable
from typing import Any

import pytest

from hotswap.http.openai.logprobs import ChatScores, TokenNames
from hotswap.seams import LogprobsWanted, TokenLogprob
from hotswap.testing.scripted_engine import ScriptedEngine

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]


def prompt_of(serving: Any, rid: str = "r") -> str:
    return bytes(serving.engine.generations[rid].request.input_ids).decode()


async def test_a_whole_reply(chatting: Callable[..., Any], model: str) -> None:
    serving = chatting()
    status, body = await serving.json("POST", PATH, json={"messages": HELLO, "rid": "r"})

    assert status == 200
    assert (body["id"], body["object"], body["model"]) == ("r", "chat.completion", model)
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "ok", "refusal": None}
    assert (choice["finish_reason"], choice["logprobs"]) == ("length", None)
    assert body["metadata"]["weight_version"] is None
    assert body["metadata"] == choice["metadata"]
    assert prompt_of(serving) == "[user]hi>"
    assert body["usage"]["prompt_tokens"] == len("[user]hi>")


async def test_what_the_template_gets(chatting: Callable[..., Any]) -> None:
    serving = chatting()
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x": 3}'}}
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    body = {
        "messages": [
            {"role": "user", "content": parts},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ],
        "tools": [{"type": "function"}],
        "chat_template_kwargs": {"more": "<more>"},
        "add_generation_prompt": False,
        "rid": "r",
    }
    status, _ = await serving.json("POST", PATH, json=body)

    assert status == 200
    assert prompt_of(serving) == "[user]one\ntwo[assistant](3)<more>1"


@pytest.mark.parametrize(
    ("more", "tokens"),
    [({}, 4096), ({"max_tokens": 5}, 5), ({"max_tokens": 5, "max_completion_tokens": 6}, 6)],
)
async def test_how_long_a_reply_may_get(
    chatting: Callable[..., Any], more: dict[str, int], tokens: int
) -> None:
    serving = chatting()
    await serving.json("POST", PATH, json={"messages": HELLO, "rid": "r", **more})
    assert serving.engine.generations["r"].request.sampling.max_new_tokens == tokens


async def test_without_a_bound_the_context_is_one(chatting: Callable[..., Any]) -> None:
    class Bounded(ScriptedEngine):
        def describe(self) -> dict[str, object]:
            return {"max_context": 100}

    serving = chatting(engine=Bounded())
    await serving.json("POST", PATH, json={"messages": HELLO, "rid": "r"})
    sampling = serving.engine.generations["r"].request.sampling
    assert sampling.max_new_tokens == 100 - len("[user]hi>")
    assert sampling.temperature == 1.0


async def test_a_stream_begins_with_the_role(chatting: Callable[..., Any]) -> None:
    serving = chatting()
    reply = await serving.client.post(PATH, json={"messages": HELLO, "stream": True})

    *lines, done = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert done == "[DONE]"
    pieces = [json.loads(line) for line in lines]
    assert {piece["object"] for piece in pieces} == {"chat.completion.chunk"}
    assert [piece["choices"][0]["delta"] for piece in pieces] == [
        {"role": "assistant", "content": ""},
        {"content": "o"},
        {"content": "k"},
        {},
    ]
    assert pieces[-1]["choices"][0]["finish_reason"] == "length"
    assert pieces[-1]["metadata"]["weight_versions"][0]["end"] == 2


@pytest.mark.parametrize(
    ("body", "param", "named"),
    [
        ({}, "messages", "required"),
        ({"messages": []}, "messages", "empty"),
        ({"messages": [{"content": "x"}]}, "messages", "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages", "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages",
            "messages[0].content[0] is of type 'image_url'",
        ),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages", "a str"),
        ({"messages": HELLO, "chat_template": "{{ 7 * 7 }}"}, "chat_template", "never run"),
        (
            {"messages": HELLO, "chat_template_kwargs": {"chat_template": "x", "tools": []}},
            "chat_template_kwargs",
            "chat_template, tools",
        ),
        (
            {"messages": HELLO, "response_format": {"type": "json_object"}},
            "response_format",
            "text",
        ),
        ({"messages": HELLO, "tool_choice": "required"}, "tool_choice", "forced"),
        ({"messages": HELLO, "top_logprobs": 2}, "top_logprobs", "logprobs"),
        ({"messages": HELLO, "functions": [{}]}, "functions", "not supported"),
        ({"messages": HELLO, "modalities": ["audio"]}, "modalities", "not supported"),
        ({"messages": HELLO, "continue_final_message": True}, "continue_final_message", "not"),
        ({"messages": HELLO, "logit_bias": {"1": 2}}, "logit_bias", "not supported"),
    ],
)
async def test_a_bad_request_names_its_field(
    chatting: Callable[..., Any], body: dict[str, object], param: str, named: str
) -> None:
    serving = chatting()
    status, reply = await serving.json("POST", PATH, json=body)

    assert (status, reply["error"]["code"]) == (400, "validation_error")
    assert reply["error"]["param"] == param
    assert named in reply["error"]["message"]
    assert serving.engine.generations == {}


async def test_a_template_that_refuses_is_a_400_with_its_reason(
    serve: Callable[..., Any], tmp_path: Any
) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no system role') }}")
    serving = serve(model=str(tmp_path))
    status, reply = await serving.json("POST", PATH, json={"messages": HELLO})
    serving.app.state.openai.template.process.close()

    assert status == 400
    assert reply["error"]["message"] == "chat template: no system role"
    assert len(serving.app.state.served.requests) == 0


async def test_a_model_without_a_template_says_so(serving: Any) -> None:
    status, reply = await serving.json("POST", PATH, json={"messages": HELLO})
    assert status == 400
    assert "use /v1/completions" in reply["error"]["message"]


async def test_a_request_for_logprobs(chatting: Callable[..., Any]) -> None:
    serving = chatting()
    body = {"messages": HELLO, "logprobs": True, "top_logprobs": 2, "rid": "r"}
    _, reply = await serving.json("POST", PATH, json=body)
    assert serving.engine.generations["r"].request.logprobs == LogprobsWanted(top=2)
    # The scripted engine scores nothing.
    assert reply["choices"][0]["logprobs"] == {"content": [], "refusal": None}


def test_scores_of_a_chat() -> None:
    engine = ScriptedEngine()

    def decode(token_ids: Any, *, skip_special_tokens: bool = True) -> str:
        return engine.decode(token_ids)

    scores = ChatScores(TokenNames(decode))
    seen = scores.add([TokenLogprob(token_id=104, logprob=-1.5, top=((104, -1.5), (0xC3, -2.0)))])
    own = {"token": "h", "logprob": -1.5, "bytes": [104]}
    part = {"token": "token_id:195", "logprob": -2.0, "bytes": None}
    assert seen == {"content": [own | {"top_logprobs": [own, part]}], "refusal": None}
    assert repr(scores) == "<ChatScores <TokenNames by text>>"


async def test_models(serve: Callable[..., Any]) -> None:
    serving = serve(served_model_name="me/mine")
    serving.app.state.served.note_source(1, "/runs/step-7")
    status, body = await serving.json("GET", "/v1/models")
    assert (status, body["object"]) == (200, "list")
    (entry,) = body["data"]
    assert (entry["id"], entry["root"], entry["object"]) == ("me/mine", "/runs/step-7", "model")

    for name in ("me/mine", "/models/a", "a", "/runs/step-7", "step-7"):
        status, body = await serving.json("GET", f"/v1/models/{name}")
        assert (status, body["id"]) == (200, name)
        _, reply = await serving.json(
            "POST", "/v1/completions", json={"prompt": "a", "model": name}
        )
        assert reply["model"] == name

    for name in ("gpt-4", "A", "mine"):
        status, body = await serving.json("GET", f"/v1/models/{name}")
        assert status == 404
        assert body["error"]["param"] == "model"
        assert body["error"]["code"] == "model_not_found"
        sent = {"prompt": "a", "model": name}
        status, body = await serving.json("POST", "/v1/completions", json=sent)
        assert (status, body["error"]["code"]) == (404, "model_not_found")
