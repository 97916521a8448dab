import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hotswap.testing.asgi_call import AsgiCall
from hotswap.testing.scripted_engine import ScriptedEngine, ScriptedGeneration
from hotswap.types import WeightStamp


@asynccontextmanager
async def streaming(
    serving: Any, **sampling: object
) -> AsyncIterator[tuple[AsgiCall, ScriptedGeneration]]:
    body = {"text": "a", "rid": "r", "stream": True, "sampling_params": sampling}
    async with AsgiCall(serving.app, "POST", "/generate", body) as call:
        start = await call.next_message()
        assert start["status"] == 200
        headers = dict(start["headers"])
        assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
        yield call, serving.engine.generations["r"]


@pytest.fixture
def manual(serve: Callable[..., Any]) -> Any:
    return serve(engine=ScriptedEngine(reply=None))


async def test_each_event_has_everything_so_far(manual: Any) -> None:
    async with streaming(manual) as (call, generation):
        generation.emit(b"a")
        first = await call.next_event()
        generation.emit(b"b")
        second = await call.next_event()
        generation.finish("length")
        last, done = await call.next_event(), await call.next_event()
        await call.finished()

    assert [event["text"] for event in (first, second, last)] == ["a", "ab", "ab"]
    assert [event["output_ids"] for event in (first, second, last)] == [[97], [97, 98], [97, 98]]
    assert [event["meta_info"]["finish_reason"] for event in (first, second)] == [None, None]
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
    assert last["meta_info"]["completion_tokens"] == 2
    assert done == "[DONE]"
    assert len(manual.app.state.served.requests) == 0


async def test_events_name_the_weights_of_their_tokens(manual: Any) -> None:
    old, new = WeightStamp(version="a", epoch=1), WeightStamp(version="b", epoch=2)
    async with streaming(manual) as (call, generation):
        generation.emit(b"x", stamp=old)
        first = await call.next_event()
        generation.emit(b"y", stamp=new)
        second = await call.next_event()
        generation.abort()
        last = await call.next_event()

    assert first["meta_info"]["weight_version"] == "a"
    assert second["meta_info"]["weight_version"] == "b"
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert last["meta_info"]["weight_versions"] == [
        {"version": "a", "weight_epoch": 1, "start": 0, "end": 1},
        {"version": "b", "weight_epoch": 2, "start": 1, "end": 2},
    ]


async def test_no_event_shows_half_a_character(manual: Any) -> None:
    async with streaming(manual) as (call, generation):
        generation.emit("é!".encode())
        texts = [(await call.next_event())["text"] for _ in range(3)]

    assert texts == ["", "é", "é!"]


async def test_a_stop_string_is_never_shown(manual: Any) -> None:
    async with streaming(manual, stop=["END"]) as (call, generation):
        generation.emit(b"hi END")
        texts = [(await call.next_event())["text"] for _ in range(6)]
        generation.finish("stop", matched="END")
        last = await call.next_event()

    assert texts == ["h", "hi", "hi ", "hi ", "hi ", "hi "]
    assert last["text"] == "hi "
    assert last["meta_info"]["finish_reason"] == {"type": "stop", "matched": "END"}


async def test_an_engine_error_in_a_stream_is_an_event(manual: Any) -> None:
    async with streaming(manual) as (call, generation):
        generation.emit(b"a")
        await call.next_event()
        generation.finish("error")
        event, done = await call.next_event(), await call.next_event()
        await call.finished()

    assert event["error"]["code"] == "internal_error"
    assert event["error"]["status"] == 500
    assert done == "[DONE]"
    assert len(manual.app.state.served.requests) == 0


async def test_the_reason_of_an_engine_error_is_in_the_event_and_the_log_has_one_line(
    manual: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="hotswap.http"):
        async with streaming(manual) as (call, generation):
            generation.finish("error", error="its logits are not finite")
            event, done = await call.next_event(), await call.next_event()
            await call.finished()

    assert event["error"]["code"] == "generation_failed"
    assert event["error"]["message"].endswith(" ended: its logits are not finite")
    assert done == "[DONE]"
    (record,) = caplog.records
    assert record.exc_info is None
    assert record.getMessage().endswith("its logits are not finite")


async def test_a_shutdown_ends_streams_with_abort_and_takes_no_more(manual: Any) -> None:
    async with streaming(manual) as (call, generation):
        generation.emit(b"a")
        await call.next_event()

        assert manual.app.state.served.requests.close() == 1
        last, done = await call.next_event(), await call.next_event()
        await call.finished()

    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert (last["text"], done) == ("a", "[DONE]")
    status, body = await manual.json("POST", "/generate", json={"text": "a"})
    assert (status, body["error"]["code"]) == (503, "shutting_down")
    assert body["error"]["retryable"]
