"""``/generate`` with many prompts, or many samples of one."""

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from hotswap.errors import QueueFull
from hotswap.http.batches import MAX_BATCH
from hotswap.seams import GenerateRequest, Generation
from hotswap.testing.asgi_call import AsgiCall
from hotswap.testing.scripted_engine import ScriptedEngine


@pytest.fixture
def manual(serve: Callable[..., Any]) -> Any:
    return serve(engine=ScriptedEngine(reply=None))


async def generate(serving: Any, **body: object) -> Any:
    status, reply = await serving.json("POST", "/generate", json=body)
    assert status == 200, reply
    return reply


async def submitted(serving: Any, count: int) -> None:
    while len(serving.engine.generations) < count:
        await anyio.lowlevel.checkpoint()


def in_flight(serving: Any) -> int:
    return len(serving.app.state.served.requests)


@pytest.mark.parametrize(
    "prompts",
    [{"text": ["a", "bc"]}, {"input_ids": [[97], [98, 99]]}, {"input_ids": [["97"], [98, 99]]}],
)
async def test_a_list_of_prompts_is_answered_in_order(serving: Any, prompts: Any) -> None:
    replies = await generate(serving, **prompts, rid="r")

    assert [reply["meta_info"]["id"] for reply in replies] == ["r_0", "r_1"]
    assert [reply["meta_info"]["prompt_tokens"] for reply in replies] == [1, 2]
    assert serving.engine.generations["r_1"].request.input_ids == [98, 99]
    assert in_flight(serving) == 0


async def test_replies_are_in_the_order_of_the_prompts_however_they_end(manual: Any) -> None:
    async with AsgiCall(manual.app, "POST", "/generate", {"text": ["a", "b"], "rid": "r"}) as call:
        await submitted(manual, 2)
        for rid, tokens in (("r_1", b"second"), ("r_0", b"first")):
            manual.engine.generations[rid].emit(tokens)
            manual.engine.generations[rid].finish("length")
        _, message = await call.finished()

    assert [reply["text"] for reply in json.loads(message["body"])] == ["first", "second"]


async def test_a_list_of_one_prompt_is_answered_by_a_list(serving: Any) -> None:
    assert [reply["text"] for reply in await generate(serving, text=["a"])] == ["ok"]
    assert (await generate(serving, text="a"))["text"] == "ok"


async def test_samples_of_a_prompt_stand_together(serving: Any) -> None:
    sampling = {"n": 2, "seed": 7, "temperature": 1.0}
    replies = await generate(serving, text=["a", "bc"], rid="r", sampling_params=sampling)

    assert [reply["meta_info"]["id"] for reply in replies] == ["r_0", "r_1", "r_2", "r_3"]
    assert [reply["meta_info"]["prompt_tokens"] for reply in replies] == [1, 1, 2, 2]
    requests = [serving.engine.generations[f"r_{number}"].request for number in range(4)]
    first, second, *others = [request.sampling.seed for request in requests]
    assert [first, second] == others
    # The first sample is that of the seed itself; the next seed's is another one.
    assert first == 7 != second != 8


async def test_samples_of_one_prompt_are_a_list(serving: Any) -> None:
    replies = await generate(serving, text="a", sampling_params={"n": 3})

    assert len(replies) == 3
    assert len({reply["meta_info"]["id"] for reply in replies}) == 3


async def test_each_prompt_may_have_an_id_and_parameters_of_its_own(serving: Any) -> None:
    sampling = [{"max_new_tokens": 3, "n": 2}, {"max_new_tokens": 4, "stop": None}]
    replies = await generate(serving, text=["a", "b"], rid=["x", "y"], sampling_params=sampling)

    assert [reply["meta_info"]["id"] for reply in replies] == ["x_0", "x_1", "y"]
    lengths = [one.request.sampling.max_new_tokens for one in serving.engine.generations.values()]
    assert lengths == [3, 3, 4]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"text": []}, "text is an empty list"),
        ({"text": ["a", ""]}, "no tokens"),
        ({"text": ["a", 3]}, "$.text[1]"),
        ({"input_ids": [[1], []]}, "input_ids[1] is empty"),
        ({"input_ids": [[1], 2]}, "token ids beside lists"),
        ({"input_ids": [[1], [256]]}, "prompt 1: input_ids has a token outside"),
        ({"text": ["a", "b"], "rid": ["x"]}, "rid has 1 ids for 2 prompts"),
        ({"text": ["a", "b"], "rid": ["x", "x"]}, "duplicate request id 'x'"),
        ({"text": ["a", "b"], "rid": ["x", ""]}, "rid is empty"),
        ({"text": ["a", "b"], "rid": ""}, "rid is empty"),
        ({"text": "a", "rid": ["x", "y"]}, "rid has 2 ids for 1 prompts"),
        ({"text": ["a", "b"], "sampling_params": [{}]}, "list of 1 for 2 prompts"),
        ({"text": "a", "sampling_params": [{}]}, "for one prompt that is no list"),
        ({"text": ["a", "b"], "sampling_params": [{}, {"top_p": 0}]}, "sampling_params[1].top_p"),
        ({"text": ["a"] * (MAX_BATCH + 1)}, f"wanted at most {MAX_BATCH}"),
        ({"text": "a", "sampling_params": {"n": MAX_BATCH + 1}}, f"wanted at most {MAX_BATCH}"),
        ({"text": "a", "sampling_params": {"n": 10**18}}, f"wanted at most {MAX_BATCH}"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_one_wrong_prompt_refuses_the_whole_request(
    manual: Any, body: dict[str, object], named: str, stream: bool
) -> None:
    status, reply = await manual.json("POST", "/generate", json={**body, "stream": stream})

    assert status in (400, 409, 413)
    assert named in reply["error"]["message"]
    assert all(one.aborted.is_set() for one in manual.engine.generations.values())
    assert in_flight(manual) == 0


async def test_a_batch_too_large_is_a_413(serving: Any) -> None:
    status, reply = await serving.json("POST", "/generate", json={"text": ["a"] * (MAX_BATCH + 1)})

    assert (status, reply["error"]["code"]) == (413, "too_many_requests")
    assert len(await generate(serving, text=["a"] * MAX_BATCH)) == MAX_BATCH


async def test_a_queue_that_takes_half_of_a_batch_takes_none_of_it(
    serve: Callable[..., Any],
) -> None:
    class Narrow(ScriptedEngine):
        def submit(self, request: GenerateRequest) -> Generation:
            if len(self.generations) == 2:
                raise QueueFull("2 requests wait already")
            return super().submit(request)

    serving = serve(engine=Narrow(reply=None))
    status, reply = await serving.json("POST", "/generate", json={"text": ["a", "b", "c"]})

    assert (status, reply["error"]["code"]) == (429, "overloaded")
    assert len(serving.engine.generations) == 2
    assert all(one.aborted.is_set() for one in serving.engine.generations.values())
    assert in_flight(serving) == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disconnect_aborts_every_part(manual: Any, stream: bool) -> None:
    body = {"text": ["a", "b", "c"], "rid": "r", "stream": stream}
    async with AsgiCall(manual.app, "POST", "/generate", body) as call:
        await submitted(manual, 3)
        manual.engine.generations["r_1"].emit(b"x")
        manual.engine.generations["r_1"].finish("length")
        await anyio.lowlevel.checkpoint()
        call.disconnect()
        await call.finished()

    assert manual.engine.generations["r_0"].aborted.is_set()
    assert manual.engine.generations["r_2"].aborted.is_set()
    assert in_flight(manual) == 0


async def test_an_engine_error_of_one_part_is_a_500_and_ends_the_others(manual: Any) -> None:
    async with AsgiCall(manual.app, "POST", "/generate", {"text": ["a", "b"], "rid": "r"}) as call:
        await submitted(manual, 2)
        manual.engine.generations["r_0"].finish("error")
        start, _ = await call.finished()

    assert start["status"] == 500
    assert manual.engine.generations["r_1"].aborted.is_set()
    assert in_flight(manual) == 0


async def test_events_of_a_batch_say_which_prompt_they_are_of(manual: Any) -> None:
    body = {"text": ["a", "b"], "rid": "r", "stream": True}
    async with AsgiCall(manual.app, "POST", "/generate", body) as call:
        await submitted(manual, 2)
        first, second = (manual.engine.generations[f"r_{number}"] for number in range(2))
        second.emit(b"x")
        seen = [await call.next_event()]
        first.emit(b"y")
        seen.append(await call.next_event())
        second.finish("length")
        seen.append(await call.next_event())
        first.finish("error")
        failed, done = await call.next_event(), await call.next_event()
        await call.finished()

    assert [event["index"] for event in seen] == [1, 0, 1]
    assert [event["text"] for event in seen] == ["x", "y", "x"]
    assert [event["meta_info"]["id"] for event in seen] == ["r_1", "r_0", "r_1"]
    assert seen[2]["meta_info"]["finish_reason"]["type"] == "length"
    assert (failed["index"], failed["error"]["code"]) == (0, "internal_error")
    assert done == "[DONE]"
    assert in_flight(manual) == 0


async def test_equal_texts_are_encoded_once(serve: Callable[..., Any]) -> None:
    class Counting(ScriptedEngine):
        encoded = 0

        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            self.encoded += 1
            return super().encode(text, add_special_tokens=add_special_tokens)

    serving = serve(engine=Counting())
    await generate(serving, text=["a", "a", "b"], sampling_params={"n": 4})

    assert serving.engine.encoded == 2
