"""The ``openai`` package as the client of a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from transformers import AutoTokenizer

from hotswap.testing.checkpoints import make_labelled_checkpoint
from hotswap.testing.server import ServerProcess
from tests.process.forked_server import ForkedServer
from tests.process.http_client import LIMIT_S

pytestmark = pytest.mark.process

TEMPLATE = (
    "{% for m in messages %}<|pad|>{{ m.role }}\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|pad|>assistant\n{% endif %}"
)
HELLO: list[Any] = [{"role": "user", "content": "Hello there"}]


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("labelled")
    made = [make_labelled_checkpoint(root / f"{label}", label=label) for label in range(2)]
    for directory in made:
        (directory / "chat_template.jinja").write_text(TEMPLATE)
    return made


@pytest.fixture(scope="module")
def server(labelled: list[Path]) -> Iterator[ServerProcess]:
    environ = {"HOTSWAP_SERVED_MODEL_NAME": "labelled"}
    with ForkedServer(labelled[0], environ=environ) as running:
        yield running
        assert running.exit_code is None, running.log
        assert "Traceback" not in running.log, running.log


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    base = f"{server.base_url}/v1"
    with OpenAI(base_url=base, api_key="none", max_retries=0, timeout=LIMIT_S) as made:
        yield made


def chat(client: OpenAI, **more: Any) -> Any:
    wanted: dict[str, Any] = {"model": "labelled", "messages": HELLO, "temperature": 0} | more
    return client.chat.completions.create(**wanted)


def test_models(client: OpenAI, labelled: list[Path]) -> None:
    (model,) = client.models.list()
    assert (model.id, model.object, model.owned_by) == ("labelled", "model", "hotswap")
    assert client.models.retrieve("labelled").id == "labelled"
    assert client.models.retrieve(str(labelled[0])).id == str(labelled[0])
    with pytest.raises(openai.NotFoundError) as raised:
        client.models.retrieve("gpt-4")
    assert raised.value.code == "model_not_found"


def test_a_chat_is_the_completion_of_its_template(client: OpenAI, labelled: list[Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(labelled[0])
    ids = tokenizer.apply_chat_template(HELLO, add_generation_prompt=True, return_dict=False)

    whole = chat(client, max_completion_tokens=12, logprobs=True, top_logprobs=3)
    plain = client.completions.create(
        model="labelled", prompt=ids, max_tokens=12, temperature=0, logprobs=2, echo=False
    )

    assert whole.usage.prompt_tokens == len(ids)
    assert (whole.usage.completion_tokens, whole.usage.total_tokens) == (12, 12 + len(ids))
    (choice,) = whole.choices
    assert choice.finish_reason == "length"
    assert choice.message.role == "assistant"
    assert choice.message.content == plain.choices[0].text != ""
    entries = choice.logprobs.content
    assert len(entries) == 12
    assert all(len(entry.top_logprobs) == 3 for entry in entries)
    assert all(entry.logprob == entry.top_logprobs[0].logprob <= 0 for entry in entries)
    scored = plain.choices[0].logprobs
    assert scored is not None
    assert scored.token_logprobs is not None
    assert scored.token_logprobs == pytest.approx([entry.logprob for entry in entries], abs=1e-4)


def test_a_stream_is_the_whole_reply_in_pieces(client: OpenAI) -> None:
    whole = chat(client, max_tokens=20)
    pieces = list(chat(client, max_tokens=20, stream=True, stream_options={"include_usage": True}))

    assert pieces[0].choices[0].delta.role == "assistant"
    *told, last = pieces
    text = "".join(piece.choices[0].delta.content or "" for piece in told)
    assert text == whole.choices[0].message.content
    assert told[-1].choices[0].finish_reason == "length"
    assert last.choices == []
    assert last.usage.completion_tokens == 20
    assert last.usage.total_tokens == whole.usage.total_tokens


def test_completions_of_lists_with_echo_and_stop(client: OpenAI) -> None:
    reply = client.completions.create(
        model="labelled", prompt=["one", "two"], n=2, max_tokens=8, echo=True, seed=5
    )
    texts = [choice.text for choice in reply.choices]
    assert [text[:3] for text in texts] == ["one", "one", "two", "two"]
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 32

    again = client.completions.create(
        model="labelled", prompt=["one", "two"], n=2, max_tokens=8, echo=True, seed=5
    )
    assert [choice.text for choice in again.choices] == texts

    greedy = client.completions.create(model="labelled", prompt="one", max_tokens=8, temperature=0)
    stop = greedy.choices[0].text[3:5]
    cut = client.completions.create(
        model="labelled", prompt="one", max_tokens=8, temperature=0, stop=stop
    )
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].text == greedy.choices[0].text.partition(stop)[0]


def test_errors_are_those_of_the_package(client: OpenAI, server: ServerProcess) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        chat(client, model="gpt-4")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError, match="logit_bias is not supported"):
        chat(client, logit_bias={"5": 1})
    with pytest.raises(openai.BadRequestError) as bad:
        chat(client, temperature=-1)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.BadRequestError, match="image_url"):
        chat(client, messages=[{"role": "user", "content": [{"type": "image_url"}]}])

    with server.client() as http:
        http.post("/pause_generation")
        with pytest.raises(openai.InternalServerError) as paused:
            chat(client)
        http.post("/continue_generation")
    assert (paused.value.status_code, paused.value.code) == (503, "paused")
    assert chat(client, max_tokens=1).usage.completion_tokens == 1


async def test_a_swap_in_the_middle_of_a_stream_is_seen(
    server: ServerProcess, labelled: list[Path]
) -> None:
    base = f"{server.base_url}/v1"
    options: dict[str, Any] = {"base_url": base, "api_key": "none", "max_retries": 0}
    async with AsyncOpenAI(**options, timeout=LIMIT_S) as client, server.async_client() as http:
        stream: Any = await client.chat.completions.create(
            model="labelled", messages=HELLO, max_tokens=400, stream=True, temperature=0
        )
        swap: asyncio.Task[Any] | None = None
        seen: list[dict[str, Any]] = []
        async for piece in stream:
            seen.append(piece.metadata)
            if len(seen) == 5:
                body = {
                    "model_path": str(labelled[1]),
                    "weight_version": "second",
                    "pause_mode": "in_place",
                }
                swap = asyncio.ensure_future(http.post("/update_weights_from_disk", json=body))
        assert swap is not None
        assert (await swap).status_code == 200

    last = seen[-1]
    assert last["weight_version_start"] is None
    assert last["weight_version"] == last["weight_version_end"] == "second"
    spans = last["weight_versions"]
    assert [span["version"] for span in spans] == [None, "second"]
    assert (spans[0]["start"], spans[0]["end"], spans[1]["end"]) == (0, spans[1]["start"], 400)
    assert seen[0]["weight_versions"] == []
    assert [meta["weight_epoch"] for meta in seen] == sorted(meta["weight_epoch"] for meta in seen)
