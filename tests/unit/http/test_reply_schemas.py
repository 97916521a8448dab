"""A real reply of every route is as the OpenAPI document says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import torch

from hotswap.follow import Follower, FollowOptions
from hotswap.http.app import core_routes
from hotswap.http.reply_schemas import REPLY_SCHEMAS
from hotswap.testing.raw_safetensors import entry, pack
from hotswap.wire import flattened_bucket

_PROMPT = {"text": "ab"}

_PUSH: dict[str, object] = {
    "serialized_named_tensors": ["PAYLOAD"],
    "load_format": "flattened_bucket",
}

# A request that succeeds, for every route: method, path and body.
ASKED: dict[str, list[tuple[str, str, object]]] = {
    "/generate": [
        ("POST", "/generate", _PROMPT),
        ("POST", "/generate", {"text": ["a", "b"], "return_logprob": True}),
    ],
    "/submit": [("POST", "/submit", {**_PROMPT, "rid": "new"})],
    "/submit_many": [("POST", "/submit_many", {"requests": [_PROMPT]})],
    "/poll/{request_id:path}": [("GET", "/poll/r", None)],
    "/result/{request_id:path}": [("GET", "/result/r?timeout=10", None)],
    "/cancel": [("POST", "/cancel", {"rid": "r"})],
    "/requests": [("GET", "/requests", None)],
    "/requests/{request_id:path}": [("GET", "/requests/r", None)],
    "/pause_generation": [("POST", "/pause_generation", None)],
    "/continue_generation": [("POST", "/continue_generation", None)],
    "/flush_cache": [("POST", "/flush_cache", None)],
    "/update_weights_from_disk": [
        ("POST", "/update_weights_from_disk", {"model_path": "/m", "weight_version": 3})
    ],
    "/pull_weights": [
        (
            "POST",
            "/pull_weights",
            {"local_checkpoint_dir": "LOCAL", "source_dir": "LOCAL", "target_version": 0},
        )
    ],
    "/update_weight_version": [("POST", "/update_weight_version", {"new_version": "3"})],
    "/begin_weight_update": [("POST", "/begin_weight_update", None)],
    "/end_weight_update": [
        ("POST", "/begin_weight_update", None),
        ("POST", "/end_weight_update", None),
        ("POST", "/begin_weight_update", None),
        ("POST", "/update_weights_from_tensor", _PUSH),
        ("POST", "/end_weight_update", None),
    ],
    "/update_weights_from_tensor": [
        ("POST", "/update_weights_from_tensor", _PUSH),
        ("POST", "/update_weights_from_tensor", {"serialized_named_tensors": ["gARdlC4="]}),
        ("POST", "/hotswap/v1/begin", {"update_id": "u"}),
        ("POST", "/update_weights_from_tensor", {**_PUSH, "update_id": "u"}),
    ],
    "/hotswap/v1/begin": [("POST", "/hotswap/v1/begin", None)],
    "/hotswap/v1/commit": [
        ("POST", "/hotswap/v1/begin", {"update_id": "u", "scope": "partial"}),
        ("POST", "/update_weights_from_tensor", {**_PUSH, "update_id": "u"}),
        ("POST", "/hotswap/v1/commit", {"update_id": "u"}),
    ],
    "/hotswap/v1/follow/notice": [("POST", "/hotswap/v1/follow/notice", {"version": 3})],
    "/hotswap/v1/abort": [
        ("POST", "/hotswap/v1/abort", None),
        ("POST", "/hotswap/v1/begin", None),
        ("POST", "/hotswap/v1/abort", None),
    ],
    "/hotswap/v1/push": [
        (
            "POST",
            "/hotswap/v1/push",
            {
                "segment": "torch_1_2_3",
                "size_bytes": 128,
                "nonce": "0" * 64,
                "tensors": [{"name": "a", "dtype": "F32", "shape": [2], "offset": 64}],
            },
        )
    ],
    "/release_memory_occupation": [("POST", "/release_memory_occupation", None)],
    "/resume_memory_occupation": [("POST", "/resume_memory_occupation", {"tags": ["weights"]})],
    "/post_process_weights": [("POST", "/post_process_weights", None)],
    "/get_weights_by_name": [("GET", "/get_weights_by_name?name=embed.weight", None)],
    "/weights_checker": [
        ("POST", "/weights_checker", {"action": action})
        for action in ("checksum", "snapshot", "compare", "reset_tensors")
    ],
    "/v1/models/{model:path}": [("GET", "/v1/models/MODEL", None)],
    "/v1/completions": [
        ("POST", "/v1/completions", {"prompt": "a", "logprobs": 1}),
        ("POST", "/v1/completions", {"prompt": ["a", "b"], "n": 2}),
    ],
    "/v1/chat/completions": [
        ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
    ],
}


def test_every_route_that_answers_with_json_has_a_schema() -> None:
    wanted = {
        route.path
        for route in core_routes()
        if any("application/json" in medias for medias in route.answers.values())
    }
    assert set(REPLY_SCHEMAS) == wanted - {"/abort_request"}


@pytest.mark.parametrize("schema", REPLY_SCHEMAS.values(), ids=REPLY_SCHEMAS.keys())
def test_schemas_are_schemas_that_refuse_something(schema: Any) -> None:
    jsonschema_rs.meta.validate(schema)
    assert not jsonschema_rs.is_valid(schema, {"an": "error"})


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
@pytest.mark.parametrize("path", REPLY_SCHEMAS)
async def test_a_real_reply_is_as_its_schema(
    serve: Callable[..., Any], tmp_path: Path, path: str, dialect: str
) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (tmp_path / "model.safetensors").write_bytes(pack({"w": entry("F32", [1], 0, 4)}, bytes(4)))
    # Beside the model's directory, where pulls may write.
    local = str(tmp_path.with_name(f"{tmp_path.name}-local"))
    serving = serve(model=str(tmp_path), served_model_name="MODEL", dialect=dialect)
    served = serving.app.state.served
    options = FollowOptions(source=tmp_path / "s", local=tmp_path / "l", base=tmp_path)
    if path != "/ready":  # which says with a 503 that it has not begun to follow
        served.follower = Follower(options, puller=served.puller, server=serving.commands)
    with flattened_bucket([("a", torch.ones(4))]) as payload:
        await check_replies(serving, path, {"LOCAL": local, "PAYLOAD": payload}, dialect)


async def check_replies(serving: Any, path: str, known: dict[str, str], dialect: str) -> None:
    """Ask for everything that ``path`` is asked for, with ``known`` in place of these words."""
    try:
        await serving.json("POST", "/submit", json={**_PROMPT, "rid": "r"})
        checked = 0
        for method, url, body in ASKED.get(path, [("GET", path, None)]):
            text = json.dumps(body)
            for word, value in known.items():
                text = text.replace(json.dumps(word), json.dumps(value))
            reply = await serving.client.request(method, url, content=text)
            assert reply.status_code in (200, 202), reply.text
            own = url.startswith(path.partition("{")[0])
            if own and reply.headers.get("content-type") == "application/json":
                jsonschema_rs.validate(dict(REPLY_SCHEMAS[path]), reply.json())
                checked += 1
        # In SGLang's dialect two of them answer without JSON.
        assert checked or (dialect, path) in {("sglang", "/health"), ("sglang", "/flush_cache")}
    finally:
        serving.app.state.openai.template.process.close()
