from typing import Any

import pytest

from hotswap.errors import Busy, IllegalCommand, InFlight, Overtaken
from hotswap.types import PauseMode


@pytest.mark.parametrize("mode", list(PauseMode))
async def test_pause(serving: Any, mode: PauseMode) -> None:
    status, body = await serving.json("POST", "/pause_generation", json={"mode": mode})

    assert status == 200
    assert body == {
        "paused": True,
        "mode": mode,
        "num_aborted_requests": 2,
        "message": "Generation paused successfully.",
        "status": "ok",
    }
    assert serving.commands.calls == [f"pause {mode}"]


async def test_pause_without_a_body_aborts(serving: Any) -> None:
    status, body = await serving.json("POST", "/pause_generation")

    assert (status, body["mode"]) == (200, "abort")


async def test_a_bogus_mode_names_the_modes(serving: Any) -> None:
    status, body = await serving.json("POST", "/pause_generation", json={"mode": "bogus"})

    assert status == 400
    assert body["success"] is False
    assert body["message"] == body["error_message"] == body["error"]["message"]
    for mode in PauseMode:
        assert mode in body["message"]
    assert serving.commands.calls == []


async def test_continue(serving: Any) -> None:
    await serving.json("POST", "/pause_generation")
    status, body = await serving.json(
        "POST", "/continue_generation", json={"torch_empty_cache": True}
    )

    assert status == 200
    assert body == {
        "paused": False,
        "message": "Generation continued successfully.",
        "status": "ok",
    }
    assert serving.commands.machine.state == "serving"


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("timeout", [None, "0", "2.5"])
async def test_flush(serving: Any, method: str, timeout: str | None) -> None:
    query = {} if timeout is None else {"timeout": timeout}
    status, body = await serving.json(method, "/flush_cache", params=query)

    assert status == 200
    assert body == {"success": True, "entries_cleared": 3, "message": "Cache flushed."}


@pytest.mark.parametrize(
    "refusal",
    [InFlight("2 requests run"), Busy("an update runs"), IllegalCommand("flush is not legal")],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_refused_flush_is_a_400_that_says_why(
    serving: Any, method: str, refusal: Exception
) -> None:
    serving.commands.refusal = refusal
    status, body = await serving.json(method, "/flush_cache")

    assert status == 400
    assert body["success"] is False
    assert body["message"] == str(refusal)
    assert body["error"]["status"] == 400
    assert body["error"]["retryable"] == (not isinstance(refusal, IllegalCommand))


@pytest.mark.parametrize("timeout", ["-1", "soon"])
async def test_a_bad_timeout_is_named(serving: Any, timeout: str) -> None:
    status, body = await serving.json("GET", "/flush_cache", params={"timeout": timeout})

    assert (status, body["success"]) == (400, False)
    assert "timeout" in body["message"]
    assert serving.commands.calls == []


@pytest.mark.parametrize("body", [{"timeout": "soon"}, {"timeout": -1}, {"tags": [1]}])
async def test_what_is_in_the_body_of_a_flush_changes_nothing(serving: Any, body: object) -> None:
    assert (await serving.json("POST", "/flush_cache", json=body))[0] == 200
    assert serving.commands.calls == ["flush"]


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
@pytest.mark.parametrize("content", [b"garbage", b"[1]", b"{", b"\xff", b'{"a":1,"a":2}'])
async def test_nor_need_it_be_json(serve: Any, dialect: str, content: bytes) -> None:
    serving = serve(dialect=dialect)
    reply = await serving.client.post("/flush_cache", content=content)

    assert reply.status_code == 200
    assert serving.commands.calls == ["flush"]


async def test_flush_is_open_on_a_closed_server(serve: Any) -> None:
    serving = serve(allow_weight_update=False)

    assert (await serving.json("GET", "/flush_cache"))[0] == 200


@pytest.mark.parametrize("path", ["/pause_generation", "/continue_generation"])
@pytest.mark.parametrize(
    ("refusal", "code", "retryable"),
    [
        (Busy("another command runs"), "busy", True),
        (Overtaken("a resume came"), "overtaken", True),
        (IllegalCommand("not legal while invalid"), "conflict", False),
    ],
)
async def test_a_refused_command_is_a_409(
    serving: Any, path: str, refusal: Exception, code: str, retryable: bool
) -> None:
    serving.commands.refusal = refusal
    status, body = await serving.json("POST", path)

    assert status == 409
    assert body == {
        "error": {"code": code, "message": str(refusal), "retryable": retryable, "status": 409},
        "success": False,
        "message": str(refusal),
        "error_message": str(refusal),
    }
