"""Requests that are legal JSON and would keep everybody else waiting."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
import torch

from hotswap.engine.tokenizer import TextCodec, load_codec
from hotswap.http import KindedRoute
from hotswap.http.app import core_routes
from hotswap.http.errors import RequestInvalid
from hotswap.http.weight_rows import MAX_VALUES, shown_rows, tensor_pieces
from hotswap.testing.asgi_call import AsgiCall
from hotswap.testing.scripted_engine import ScriptedEngine
from hotswap.testing.tiny_tokenizer import write_tokenizer


def nested(depth: int) -> bytes:
    return b'{"x":' * depth + b"1" + b"}" * depth


@pytest.mark.parametrize(
    # The stream of events has no end.
    "route",
    [one for one in core_routes() if one.path != "/hotswap/v1/events"],
    ids=repr,
)
@pytest.mark.parametrize("depth", [400, 700, 980, 5000])
async def test_no_route_fails_over_deep_json(serving: Any, route: KindedRoute, depth: int) -> None:
    reply = await serving.client.request(
        "POST" if "POST" in (route.methods or ()) else "GET", route.path, content=nested(depth)
    )

    # 404: no request has the id of the path as it is written in the route.
    assert reply.status_code in (200, 400, 404)


@pytest.mark.parametrize("field", ["text", "sampling_params", "rid", "stream"])
async def test_deep_json_in_a_field_is_a_400(serving: Any, field: str) -> None:
    value = nested(900) if field != "sampling_params" else b'{"stop":' + nested(900) + b"}"
    content = b'{"%s": %s}' % (field.encode(), value)
    status, body = await serving.json("POST", "/generate", content=content)

    assert (status, body["error"]["code"]) == (400, "validation_error")


async def test_nulls_count_as_unsent_in_the_arguments_and_one_level_down(serving: Any) -> None:
    sent = {"text": "a", "rid": None, "sampling_params": {"stop": None, "top_p": None}}
    assert (await serving.json("POST", "/generate", json=sent))[0] == 200


@pytest.mark.parametrize(
    ("sampling", "named"),
    [
        ({"stop": ["a", "b", *map(str, range(63))]}, "stop has 65 strings, wanted at most 64"),
        ({"stop": [str(n) for n in range(80_000)]}, "stop has 80000 strings"),
        ({"stop": "x" * 16_385}, "stop has 16385 characters in all, wanted at most 16384"),
        ({"stop_token_ids": [1] * 4097}, "stop_token_ids has 4097 ids, wanted at most 4096"),
    ],
)
async def test_too_much_to_compare_with(
    serving: Any, sampling: dict[str, object], named: str
) -> None:
    body = {"text": "a", "sampling_params": sampling}
    status, reply = await serving.json("POST", "/generate", json=body)

    assert (status, reply["error"]["code"]) == (400, "validation_error")
    assert named in reply["error"]["message"]
    assert serving.engine.generations == {}


async def test_as_much_as_is_allowed(serving: Any) -> None:
    stops = [chr(ord("A") + n) * 256 for n in range(64)]
    sampling = {"stop": stops + stops, "stop_token_ids": [1] * 4096}
    body = {"text": "a", "rid": "r", "sampling_params": sampling}

    assert (await serving.json("POST", "/generate", json=body))[0] == 200
    assert serving.engine.generations["r"].request.sampling.stop == tuple(stops)


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/generate", {"text": "a", "rid": "r" * 513}, "$.rid"),
        (
            "/update_weights_from_disk",
            {"model_path": "/b", "weight_version": "v" * 4097},
            "$.weight_version",
        ),
    ],
)
async def test_what_every_reply_repeats_is_short(
    serving: Any, path: str, body: dict[str, object], named: str
) -> None:
    status, reply = await serving.json("POST", path, json=body)

    assert status == 400
    assert named in reply["error"]["message"]


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory, 512)
    loaded = load_codec(directory)
    assert loaded is not None
    return loaded


def test_other_threads_run_while_a_long_text_is_encoded(codec: TextCodec) -> None:
    ticks: list[float] = []
    begun, ended = threading.Event(), threading.Event()

    def tick() -> None:
        while not ended.is_set():
            ticks.append(time.perf_counter())
            begun.set()
            ended.wait(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        begun.wait()
        start = time.perf_counter()
        ids = codec.encode("hello there " * 30_000)
        end = time.perf_counter()
    finally:
        ended.set()
        thread.join()

    assert len(ids) > 30_000
    assert codec.decode(ids) == "hello there " * 30_000
    assert sum(start < at < end for at in ticks) > 10


async def test_long_texts_are_encoded_one_by_one(serve: Any) -> None:
    inside, most = 0, 0
    first, go_on = threading.Event(), threading.Event()

    class Slow(ScriptedEngine):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            first.set()
            go_on.wait()
            inside -= 1
            return [1]

    serving = serve(engine=Slow())
    body = {"text": "x" * 5000}
    async with (
        AsgiCall(serving.app, "POST", "/generate", body) as one,
        AsgiCall(serving.app, "POST", "/generate", body) as two,
    ):
        await anyio.to_thread.run_sync(first.wait)
        assert (await serving.json("GET", "/health"))[0] == 200
        go_on.set()
        replies = [(await one.finished())[0], (await two.finished())[0]]

    assert [reply["status"] for reply in replies] == [200, 200]
    assert most == 1


@pytest.mark.parametrize(
    "shape",
    [
        (),
        (0,),
        (7,),
        (40_000,),
        (3, 0),
        (0, 3),
        (50, 1000),
        (3, 20_000),
        (2, 3, 20_000),
        (300, 2, 40),
        (20_000, 1),
    ],
)
def test_rows_in_pieces_are_the_rows(shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape)
    if tensor.ndim and tensor.numel():
        tensor.view(-1)[0] = float("nan")
    pieces = list(tensor_pieces(tensor))

    assert b"".join(pieces) == msgspec.json.encode(tensor.tolist())
    assert max(map(len, pieces)) < 16 * 1024 * 32


async def test_more_values_than_a_reply_holds_are_a_400(serving: Any) -> None:
    serving.engine.tensors["wide"] = torch.zeros(1, 1).expand(100_000, 1024)
    body = {"name": "wide", "truncate_size": 10**9}
    status, reply = await serving.json("POST", "/get_weights_by_name", json=body)

    assert (status, reply["error"]["code"]) == (400, "validation_error")
    assert "truncate_size of at most 4096" in reply["error"]["message"]

    status, reply = await serving.json("POST", "/get_weights_by_name", json={"name": "wide"})
    assert (status, len(reply["parameter"])) == (200, 100)


async def test_a_huge_truncate_size_of_a_small_weight_is_all_of_it(serving: Any) -> None:
    body = {"name": "embed.weight", "truncate_size": 10**12}
    status, reply = await serving.json("POST", "/get_weights_by_name", json=body)

    assert (status, len(reply["parameter"])) == (200, 3)


async def test_an_engine_copies_no_more_than_can_be_shown() -> None:
    asked: list[int] = []

    class Noting(ScriptedEngine):
        async def read_weight(self, name: str, rows: int) -> torch.Tensor:
            asked.append(rows)
            return await super().read_weight(name, rows)

    engine = Noting()
    engine.tensors["long"] = torch.zeros(1).expand(MAX_VALUES + 5)
    assert len(await shown_rows(engine, "long", MAX_VALUES)) == MAX_VALUES
    with pytest.raises(RequestInvalid, match=f"at most {MAX_VALUES}"):
        await shown_rows(engine, "long", 10**15)
    assert max(asked) == MAX_VALUES + 1


async def test_a_field_without_effect_is_named(serving: Any) -> None:
    _, body = await serving.json(
        "POST", "/generate", json={"text": "a", "max_new_tokens": 5, "b" * 99: 1}
    )
    assert body["meta_info"]["ignored"] == ["b" * 64, "max_new_tokens"]

    request = {"text": "a", "stream": True, "max_new_tokens": 5}
    async with AsgiCall(serving.app, "POST", "/generate", request) as call:
        assert (await call.next_event())["meta_info"]["ignored"] == ["max_new_tokens"]

    content = json.dumps({"text": "a"} | {f"k{n:02}": 1 for n in range(40)})
    _, body = await serving.json("POST", "/generate", content=content)
    assert body["meta_info"]["ignored"] == [f"k{n:02}" for n in range(16)]
