"""What ``--dialect`` changes, and that it changes nothing else."""

from collections.abc import Callable
from typing import Any

import pytest

from hotswap.admission import WhilePaused
from hotswap.api_keys import ApiKey
from hotswap.errors import (
    Busy,
    HotswapError,
    IllegalCommand,
    InFlight,
    Overtaken,
    Paused,
    QueueFull,
    UpdateFailed,
    UpdateRejected,
    UpdateRolledBack,
    WeightsNotWhole,
)
from hotswap.http.dialect import dialect_of, paused_policy
from hotswap.seams import SamplingParams
from hotswap.settings import Settings
from hotswap.testing.asgi_call import AsgiCall

UPDATE = "/update_weights_from_disk"
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


@pytest.fixture
def sglang(serve: Callable[..., Any]) -> Any:
    return serve(dialect="sglang")


@pytest.mark.parametrize(
    "refusal",
    [
        UpdateRejected("hidden_size is 4, wanted 8"),
        InFlight("2 requests are in flight"),
        IllegalCommand("not while it sleeps"),
        Busy("another update runs"),
        UpdateRolledBack("put back"),
        UpdateFailed("not whole"),
    ],
    ids=lambda refusal: type(refusal).__name__,
)
async def test_a_failed_update_is_a_400_that_every_trainer_reads(
    sglang: Any, refusal: HotswapError
) -> None:
    sglang.commands.refusal = refusal
    status, body = await sglang.json("POST", UPDATE, json={"model_path": "/b"})

    assert status == 400
    assert body == {
        "object": "error",
        "success": False,
        "message": str(refusal),
        "error_message": str(refusal),
        "type": "Bad Request",
        "param": None,
        "code": 400,
    }


@pytest.mark.parametrize("path", ["/pause_generation", "/continue_generation"])
async def test_a_refused_command_is_a_400(sglang: Any, path: str) -> None:
    sglang.commands.refusal = Overtaken("a resume came")
    status, body = await sglang.json("POST", path)

    assert (status, body["success"], body["error_message"]) == (400, False, "a resume came")


async def test_a_validation_error_has_both_envelopes(sglang: Any) -> None:
    status, body = await sglang.json("POST", "/generate", json={"text": 3})

    assert status == 400
    assert (body["object"], body["type"], body["param"], body["code"]) == (
        "error",
        "Bad Request",
        None,
        400,
    )
    assert "text" in body["message"]
    assert body["error"] == {
        "message": body["message"],
        "type": "invalid_request_error",
        "code": 400,
        "retryable": False,
    }


@pytest.mark.parametrize(
    ("refusal", "status"),
    [(Paused("paused"), 503), (WeightsNotWhole("torn"), 503), (QueueFull("full"), 429)],
    ids=["paused", "torn", "full"],
)
async def test_a_refused_request_keeps_its_status(
    sglang: Any, refusal: HotswapError, status: int
) -> None:
    sglang.commands.admission.refusal = refusal
    seen, body = await sglang.json("POST", "/generate", json={"text": "a"})

    assert (seen, body["code"], body["type"]) == (status, status, str(status))
    assert body["error"]["retryable"] is True


@pytest.mark.parametrize(
    ("method", "path", "status", "detail"),
    [
        (
            "GET",
            "/nope",
            404,
            "Not Found: '/nope' is no route of this server; GET /openapi.json lists them",
        ),
        ("GET", "/generate", 405, "Method Not Allowed"),
    ],
)
async def test_what_does_not_exist_has_starlette_s_body(
    sglang: Any, method: str, path: str, status: int, detail: str
) -> None:
    reply = await sglang.client.request(method, path)

    assert (reply.status_code, reply.json()) == (status, {"detail": detail})
    assert ("allow" in reply.headers) is (status == 405)


@pytest.mark.parametrize("path", ["/generate", UPDATE, "/nope"])
async def test_a_request_without_the_key_gets_sglang_s_body(
    serve: Callable[..., Any], path: str
) -> None:
    serving = serve(dialect="sglang", api_key=ApiKey("k"))
    reply = await serving.client.post(path, json={})

    assert (reply.status_code, reply.json()) == (401, {"error": "Unauthorized"})
    assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_flush_is_a_text(sglang: Any, method: str) -> None:
    reply = await sglang.client.request(method, "/flush_cache", params={"timeout": "0"})

    assert (reply.status_code, reply.text) == (200, FLUSHED)
    assert reply.headers["content-type"].startswith("text/plain")
    sglang.commands.refusal = InFlight("2 requests run")
    reply = await sglang.client.request(method, "/flush_cache")
    assert (reply.status_code, reply.text) == (400, "2 requests run\n")
    reply = await sglang.client.request(method, "/flush_cache", params={"timeout": "-1"})
    assert (reply.status_code, "timeout" in reply.text) == (400, True)


async def test_weights_by_name_are_a_bare_list(sglang: Any) -> None:
    body = {"name": "embed.weight", "truncate_size": 2}
    assert await sglang.json("GET", "/get_weights_by_name", json=body) == (
        200,
        [[0.0, 1.0], [2.0, 3.0]],
    )
    status, body = await sglang.json("POST", "/get_weights_by_name", json={"name": "nope"})
    assert status == 400
    assert body["error"]["message"].startswith("Get parameter by name failed: ")
    assert "'nope'" in body["error"]["message"]


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("7", "Succeeded to update model weights. Weight version updated to 7."),
        (None, "Succeeded to update model weights."),
    ],
)
async def test_an_update_tells_of_its_version(
    sglang: Any, version: str | None, message: str
) -> None:
    body = {"model_path": "/b", "weight_version": version}
    status, reply = await sglang.json("POST", UPDATE, json=body)

    assert (status, reply["success"], reply["message"]) == (200, True, message)
    assert reply["num_paused_requests"] == 4


@pytest.mark.parametrize(("dialect", "wanted"), [("gr", 0.0), ("sglang", 1.0)])
async def test_a_request_without_a_temperature(
    serve: Callable[..., Any], dialect: str, wanted: float
) -> None:
    """On every route that shares its sampling parameters; one that has one keeps it."""
    serving = serve(dialect=dialect)
    many = {"requests": [{"text": "a", "rid": "many"}]}
    for path, body in (
        ("/generate", {"text": "a", "rid": "one"}),
        ("/generate", {"text": ["a"], "rid": "list", "sampling_params": [{"max_new_tokens": 1}]}),
        ("/generate", {"text": "a", "rid": "null", "sampling_params": {"temperature": None}}),
        ("/generate", {"text": "a", "rid": "hot", "sampling_params": {"temperature": 0.5}}),
        ("/submit", {"text": "a", "rid": "later"}),
        ("/submit_many", many),
    ):
        status, _ = await serving.json("POST", path, json=body)
        assert status in (200, 202), path

    temperatures = {
        rid: one.request.sampling.temperature for rid, one in serving.engine.generations.items()
    }
    assert temperatures == {
        **dict.fromkeys(["one", "list_0", "null", "later", "many"], wanted),
        "hot": 0.5,
    }


async def test_the_defaults_of_sglang(sglang: Any) -> None:
    await sglang.json("POST", "/generate", json={"text": "a", "rid": "r"})

    assert sglang.engine.generations["r"].request.sampling == SamplingParams(
        max_new_tokens=128, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0
    )


async def test_a_whole_reply_has_what_sglang_s_has(sglang: Any) -> None:
    _, body = await sglang.json("POST", "/generate", json={"text": "a", "rid": "r"})

    meta = body["meta_info"]
    assert {
        "id",
        "finish_reason",
        "prompt_tokens",
        "weight_version",
        "num_retractions",
        "reasoning_tokens",
        "completion_tokens",
        "cached_tokens",
        "e2e_latency",
    } <= set(meta)
    assert meta["reasoning_tokens"] == 0
    assert "token_ids" not in meta


@pytest.mark.parametrize("alive", [True, False])
async def test_health_is_a_status(sglang: Any, alive: bool) -> None:
    sglang.engine.alive = alive
    reply = await sglang.client.get("/health")

    assert (reply.status_code, reply.content) == (200 if alive else 503, b"")


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
async def test_a_stream_that_fails_says_so_in_the_dialect(
    serve: Callable[..., Any], dialect: str
) -> None:
    serving = serve(dialect=dialect)
    serving.engine.reply = None
    body = {"text": "a", "stream": True, "rid": "r"}
    async with AsgiCall(serving.app, "POST", "/generate", body) as call:
        await serving.engine.submitted.wait()
        serving.engine.generations["r"].finish("error")
        event = await call.next_event()

    error = event["error"]
    assert (error["code"], error["retryable"]) == (
        ("internal_error", False) if dialect == "gr" else (500, False)
    )
    assert ("status" in error) is (dialect == "gr")
    assert set(event) == {"error"}


@pytest.mark.parametrize(
    ("dialect", "told", "wanted"),
    [
        ("gr", "auto", WhilePaused.REJECT),
        ("sglang", "auto", WhilePaused.HOLD),
        ("gr", "hold", WhilePaused.HOLD),
        ("sglang", "reject", WhilePaused.REJECT),
    ],
)
def test_an_explicit_policy_wins(dialect: str, told: str, wanted: WhilePaused) -> None:
    assert paused_policy(Settings(dialect=dialect, while_paused=told)) is wanted


def test_every_dialect_has_its_name() -> None:
    for name in ("gr", "sglang"):
        dialect = dialect_of(Settings(dialect=name))
        assert dialect.name == name
        assert name in repr(dialect).lower()
