"""What a client of OpenAI's routes and the log read when the engine says why it gave up."""

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from hotswap.testing.asgi_call import AsgiCall
from hotswap.testing.scripted_engine import ScriptedEngine

PATH = "/v1/completions"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_error_that_says_why_is_told_without_a_traceback(
    serve: Callable[..., Any], caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    serving = serve(engine=ScriptedEngine(reply=None))
    body = {"prompt": "a", "rid": "r", "stream": stream}
    with caplog.at_level(logging.WARNING, logger="hotswap.http"):
        async with AsgiCall(serving.app, "POST", PATH, body) as call:
            await serving.engine.submitted.wait()
            serving.engine.generations["r"].finish("error", error="its logits are not finite")
            if stream:
                error = (await call.next_event())["error"]
                assert await call.next_event() == "[DONE]"
            else:
                start, payload = await call.finished()
                assert start["status"] == 500
                error = json.loads(payload["body"])["error"]
    assert (error["type"], error["code"]) == ("server_error", "generation_failed")
    assert error["message"] == "request r ended: its logits are not finite"
    (record,) = caplog.records
    assert record.exc_info is None
