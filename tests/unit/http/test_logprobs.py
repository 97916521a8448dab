"""What clients of SGLang read in ``meta_info`` when they ask for log-probabilities."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hotswap.seams import LogprobsWanted, TokenLogprob
from hotswap.testing.asgi_call import AsgiCall
from hotswap.testing.scripted_engine import ScriptedEngine, ScriptedGeneration

KEYS = {
    "input_token_logprobs",
    "output_token_logprobs",
    "input_top_logprobs",
    "output_top_logprobs",
    "input_token_ids_logprobs",
    "output_token_ids_logprobs",
}


def scored(token: str, logprob: float | None, **extra: Any) -> TokenLogprob:
    return TokenLogprob(token_id=ord(token), logprob=logprob, **extra)


@asynccontextmanager
async def running(
    serve: Callable[..., Any], **body: object
) -> AsyncIterator[tuple[AsgiCall, ScriptedGeneration]]:
    serving = serve(engine=ScriptedEngine(reply=None))
    whole = {"text": "abc", "rid": "r", **body}
    async with AsgiCall(serving.app, "POST", "/generate", whole) as call:
        await serving.engine.submitted.wait()
        yield call, serving.engine.generations["r"]


async def meta_of(call: AsgiCall) -> dict[str, Any]:
    _, body = await call.finished()
    meta: dict[str, Any] = json.loads(body["body"])["meta_info"]
    return meta


async def test_what_slime_reads(serve: Callable[..., Any]) -> None:
    async with running(serve, return_logprob=True) as (call, generation):
        assert generation.request.logprobs == LogprobsWanted()
        generation.emit_scored(scored("x", -0.5))
        generation.emit_scored(scored("y", -2.25))
        generation.finish("length")
        meta = await meta_of(call)
    assert meta["output_token_logprobs"] == [[-0.5, 120, None], [-2.25, 121, None]]
    assert meta["input_token_logprobs"] == []
    assert KEYS & set(meta) == {"input_token_logprobs", "output_token_logprobs"}
    # What a beam of GR has for its score.
    assert meta["beam_results"][0]["meta_info"]["sequence_score"] == -2.75


async def test_nothing_of_it_without_return_logprob(serve: Callable[..., Any]) -> None:
    body = {"return_logprob": False, "top_logprobs_num": 2, "logprob_start_len": 0}
    async with running(serve, **body) as (call, generation):
        assert generation.request.logprobs is None
        generation.emit(b"x")
        generation.finish("length")
        meta = await meta_of(call)
    assert not KEYS & set(meta)
    assert "ignored" not in meta


async def test_every_list_has_an_entry_for_each_token(serve: Callable[..., Any]) -> None:
    body = {
        "return_logprob": True,
        "logprob_start_len": 1,
        "top_logprobs_num": 2,
        "token_ids_logprob": [0, 113],
        "return_text_in_logprobs": True,
    }
    extra = {"top": ((120, -0.5), (121, -1.0)), "asked": ((0, -9.0), (113, -float("inf")))}
    async with running(serve, **body) as (call, generation):
        assert generation.request.logprobs == LogprobsWanted(
            input_start=1, top=2, token_ids=(0, 113)
        )
        inputs = (scored("b", -3.0, **extra), scored("c", -4.0, **extra))
        generation.emit_scored(scored("x", -0.5, **extra), inputs=inputs)
        generation.finish("length")
        meta = await meta_of(call)
    top = [[-0.5, 120, "x"], [-1.0, 121, "y"]]
    asked = [[-9.0, 0, "<0>"], [pytest.approx(-3.4e38, rel=0.01), 113, "q"]]
    assert meta["input_token_logprobs"] == [[None, 98, "b"], [-4.0, 99, "c"]]
    assert meta["output_token_logprobs"] == [[-0.5, 120, "x"]]
    assert meta["input_top_logprobs"] == [None, top]
    assert meta["output_top_logprobs"] == [top]
    assert meta["input_token_ids_logprobs"] == [None, asked]
    assert meta["output_token_ids_logprobs"] == [asked]


async def test_events_of_a_stream_have_those_so_far(serve: Callable[..., Any]) -> None:
    async with running(serve, return_logprob=True, stream=True) as (call, generation):
        await call.next_message()
        seen = []
        for token, logprob in (("x", -0.5), ("y", -0.25)):
            generation.emit_scored(scored(token, logprob))
            seen.append((await call.next_event())["meta_info"]["output_token_logprobs"])
    assert seen == [[[-0.5, 120, None]], [[-0.5, 120, None], [-0.25, 121, None]]]


async def test_a_batch_asks_for_each_prompt_or_for_all(serving: Any) -> None:
    body = {
        "text": ["a", "b"],
        "rid": "r",
        "sampling_params": {"n": 2},
        "return_logprob": [True, False],
        "logprob_start_len": 0,
        "top_logprobs_num": [3, 0],
        "token_ids_logprob": [[5], [6, 7]],
    }
    status, replies = await serving.json("POST", "/generate", json=body)
    assert (status, len(replies)) == (200, 4)
    wanted = [serving.engine.generations[f"r_{number}"].request.logprobs for number in range(4)]
    first = LogprobsWanted(input_start=0, top=3, token_ids=(5,))
    assert wanted == [first, first, None, None]
    assert ["output_token_logprobs" in reply["meta_info"] for reply in replies] == [
        True,
        True,
        False,
        False,
    ]


async def test_token_ids_of_all_prompts(serving: Any) -> None:
    body = {"text": ["a", "b"], "rid": "r", "return_logprob": True, "token_ids_logprob": [5, 6]}
    assert (await serving.json("POST", "/generate", json=body))[0] == 200
    for number in range(2):
        request = serving.engine.generations[f"r_{number}"].request
        assert request.logprobs == LogprobsWanted(token_ids=(5, 6))


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"logprob_start_len": -2}, "logprob_start_len is -2"),
        ({"top_logprobs_num": [1]}, "top_logprobs_num is a list of 1 for one prompt"),
        ({"text": ["a", "b"], "return_logprob": [True]}, "return_logprob is a list of 1 for 2"),
        ({"token_ids_logprob": [1, [2]]}, "token ids beside lists"),
        ({"token_ids_logprob": ["x"]}, "token_ids_logprob[0]"),
        ({"return_logprob": "maybe"}, "return_logprob"),
        ({"sampling_params": {"n": 0}}, "n"),
        ({"sampling_params": {"min_p": 2}}, "min_p"),
        ({"sampling_params": {"repetition_penalty": 0}}, "repetition_penalty"),
    ],
)
async def test_what_is_wrong_is_named(serving: Any, body: dict[str, object], named: str) -> None:
    whole = {"text": "a", "return_logprob": True, **body}
    status, reply = await serving.json("POST", "/generate", json=whole)
    assert status == 400
    assert named in reply["error"]["message"]


async def test_the_prompts_of_a_batch_are_bounded_together(serving: Any) -> None:
    body = {
        "text": "x" * 200,
        "return_logprob": True,
        "logprob_start_len": 100,
        "top_logprobs_num": 128,
        "sampling_params": {"n": 163},
    }
    status, reply = await serving.json("POST", "/generate", json=body)
    assert status == 400
    assert f"{163 * 100 * 129} log-probabilities of prompts" in reply["error"]["message"]
    assert serving.engine.generations == {}
    body["sampling_params"] = {"n": 162}
    assert (await serving.json("POST", "/generate", json=body))[0] == 200


async def test_texts_need_a_tokenizer(serve: Callable[..., Any]) -> None:
    serving = serve(engine=ScriptedEngine(reply=None, tokenizer=False))
    body = {"input_ids": [1], "rid": "r", "return_logprob": True, "return_text_in_logprobs": True}
    async with AsgiCall(serving.app, "POST", "/generate", body) as call:
        await serving.engine.submitted.wait()
        generation = serving.engine.generations["r"]
        generation.emit_scored(scored("x", -0.5))
        generation.finish("length")
        meta = await meta_of(call)
    assert meta["output_token_logprobs"] == [[-0.5, 120, None]]


async def test_a_stop_is_part_of_the_text_where_it_is_kept(serve: Callable[..., Any]) -> None:
    sampling = {"stop": "END", "no_stop_trim": True, "skip_special_tokens": False}
    async with running(serve, stream=True, sampling_params=sampling) as (call, generation):
        await call.next_message()
        generation.emit(b"a\0END")
        texts = [(await call.next_event())["text"] for _ in range(5)]
        generation.finish("stop", matched="END")
        texts.append((await call.next_event())["text"])
    assert texts == ["a", "a<0>", "a<0>E", "a<0>EN", "a<0>END", "a<0>END"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_that_came_too_early_is_shown(serve: Callable[..., Any], stream: bool) -> None:
    sampling = {"stop": "ab", "min_new_tokens": 3}
    async with running(serve, stream=stream, sampling_params=sampling) as (call, generation):
        generation.emit(b"abxab")
        generation.finish("stop", matched="ab")
        if not stream:
            _, body = await call.finished()
            assert b'"text":"abx"' in body["body"]
            return
        await call.next_message()
        texts = [(await call.next_event())["text"] for _ in range(6)]
    assert texts == ["", "ab", "abx", "abx", "abx", "abx"]


async def test_submitted_requests_keep_their_stops_too(serve: Callable[..., Any]) -> None:
    serving = serve(engine=ScriptedEngine(reply=None))
    sampling = {"stop": "END", "no_stop_trim": True}
    requests = [{"text": "a", "rid": "r", "sampling_params": sampling}, {"text": "a", "rid": "s"}]
    assert (await serving.json("POST", "/submit_many", json={"requests": requests}))[0] == 202
    for rid in "rs":
        serving.engine.generations[rid].emit(b"aEND")
        serving.engine.generations[rid].finish("stop", matched="END")
    texts = [
        (await serving.json("GET", f"/result/{rid}", params={"timeout": 30}))[1]["text"]
        for rid in "rs"
    ]
    assert texts == ["aEND", "a"]
