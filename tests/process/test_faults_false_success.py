"""A16, O6: what did not happen is no success, says why, and has changed nothing.

Every route is made to fail once, on every server of the faults' tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.process.evidence import NEW_TOKENS, PROMPTS
from tests.process.fresh import fresh
from tests.process.http_client import Streams
from tests.process.served import Served, in_every_flavour
from tests.process.told import flush_refused, flushed, refusal
from tests.process.update_routes import EACH_ROUTE, MODES, Delivery, deliver

pytestmark = [pytest.mark.process, in_every_flavour]

UPDATE = "/update_weights_from_disk"
RESET = {"action": "reset_tensors"}
ENDLESS = 1800


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """A request that cannot be done, and what its refusal names.

    ``only_while_open``: where the gate is closed it meets that first.
    """

    path: str
    names: str
    body: Mapping[str, Any] = field(default_factory=dict)
    method: str = "POST"
    outcome: str = "rejected"
    reports_success: bool = True
    only_while_open: bool = False


def _generating(path: str, names: str, outcome: str = "rejected", **body: Any) -> Failing:
    return Failing(path=path, names=names, outcome=outcome, body=body, reports_success=False)


MANY = [{"input_ids": [1]}] * 33
FAILING = [
    Failing(path=UPDATE, names="model_path"),
    Failing(path=UPDATE, names="/nowhere", body={"model_path": "/nowhere"}),
    Failing(path=UPDATE, names="pause_mode", body={"model_path": "/nowhere", "pause_mode": "x"}),
    Failing(path="/pause_generation", names="mode", body={"mode": "x"}),
    Failing(path="/update_weight_version", names="new_version"),
    Failing(path="/pull_weights", names="source_dir", body={"local_checkpoint_dir": "/nowhere"}),
    Failing(path="/begin_weight_update", names="draft", body={"selector": "draft"}),
    Failing(path="/end_weight_update", names="/begin_weight_update"),
    Failing(path="/hotswap/v1/begin", names="scope", body={"scope": "x"}),
    Failing(path="/hotswap/v1/commit", names="update_id"),
    Failing(path="/hotswap/v1/abort", names="update_id", body={"update_id": ""}),
    Failing(path="/hotswap/v1/follow/notice", names="version", body={"version": "x"}),
    Failing(path="/release_memory_occupation", names="tags", body={"tags": ["x"]}),
    Failing(path="/resume_memory_occupation", names="tags", body={"tags": ["x"]}),
    Failing(
        path="/post_process_weights",
        names="post_process_quantization",
        body={"post_process_quantization": "x"},
    ),
    Failing(path="/weights_checker", names="Unsupported action='x'", body={"action": "x"}),
    _generating("/get_weights_by_name", "nope", "no such weight", name="nope"),
    _generating("/get_weights_by_name", "name"),
    _generating("/hotswap/v1/disk/check", "model_path"),
    _generating("/generate", "input_ids"),
    _generating("/generate", "temperature", input_ids=[1], sampling_params={"temperature": -1}),
    Failing(
        path="/generate",
        names="prompt 1",
        body={"input_ids": [[1], [10**6]]},
        reports_success=False,
        only_while_open=True,
    ),
    _generating("/submit", "beam_width", input_ids=[1], beam_width=2),
    _generating("/submit_many", "33 requests", "too many", requests=MANY),
    _generating("/abort_request", "rid", rid=3),
    _generating("/cancel", "nobody", "unknown id", request_id="nobody"),
    *(
        Failing(
            path=f"{path}/nobody",
            method="GET",
            names="nobody",
            outcome="unknown id",
            reports_success=False,
        )
        for path in ("/poll", "/result", "/requests")
    ),
]


@pytest.mark.parametrize("mode", [None, *MODES])
@pytest.mark.parametrize("route", EACH_ROUTE)
async def test_a16_every_route_that_fails_says_so_and_changes_nothing(
    served: Served, tmp_path: Path, route: str, mode: str | None
) -> None:
    client, dialect = served.client, served.dialect
    if mode is not None:
        await client.pause(mode)
    before = await client.snapshot()
    answer = await deliver(client, route, Delivery(directory=tmp_path / "none"))
    assert "none" in refusal(dialect, "rejected", answer)
    for failing in FAILING:
        if failing.only_while_open and mode is not None:
            continue
        reply = await client.call(failing.method, failing.path, dict(failing.body))
        message = refusal(
            dialect,
            failing.outcome,
            (reply.status_code, reply.json()),
            reports_success=failing.reports_success,
        )
        assert failing.names in message, failing
    assert await client.snapshot() == before
    status = (await client.get("/status"))[1]
    assert status["http_requests"] == 0
    assert status["updates"] == []


async def test_a16_what_cannot_be_done_beside_a_request_is_refused_and_done_later(
    served: Served, a: Path, b: Path
) -> None:
    client, dialect = served.client, served.dialect
    # Before the stream begins: it must not be over when it is aborted.
    wanted = (await fresh(a)).tokens[0]
    before = await client.snapshot()
    async with Streams(client) as streams:
        stream = streams.start(PROMPTS[0], ENDLESS)
        await stream.has_tokens()
        for path, body in ((UPDATE, {"model_path": str(b)}), ("/weights_checker", RESET)):
            message = refusal(dialect, "conflict", await client.post(path, **body))
            assert "pause" in message, (path, message)
        assert "retract" in await flush_refused(client, dialect)
        # An id that nobody has is no failure: the request may just have ended.
        reply = await client.call("POST", "/abort_request", {"rid": "nobody"})
        assert (reply.status_code, reply.content) == (200, b"")
        await stream.has_tokens(NEW_TOKENS)
        assert stream.tokens[:NEW_TOKENS] == wanted
        await client.call("POST", "/abort_request", {"rid": stream.meta["id"]})
        assert (await stream.finished())["meta_info"]["finish_reason"]["type"] == "abort"
    assert await client.snapshot() == before
    await flushed(client, dialect)
    await client.update(b)
    assert await client.greedy(PROMPTS[:2], NEW_TOKENS) == (await fresh(b)).tokens[:2]


async def test_a16_weights_that_differ_are_no_success(served: Served, b: Path) -> None:
    client = served.client
    await client.done("/weights_checker", action="snapshot")
    await client.update(b)
    answer = await client.post("/weights_checker", action="compare")
    assert "model.layers.0" in refusal(served.dialect, "differs", answer)


async def test_a16_an_id_that_is_taken_is_no_success(served: Served) -> None:
    client = served.client
    async with Streams(client) as streams:
        stream = streams.start(PROMPTS[0], ENDLESS)
        await stream.has_tokens()
        taken = stream.meta["id"]
        answer = await client.post("/generate", input_ids=PROMPTS[1], rid=taken)
        message = refusal(served.dialect, "id taken", answer, reports_success=False)
        assert taken in message
        await client.call("POST", "/abort_request", {"rid": taken})
        assert (await stream.finished())["meta_info"]["id"] == taken
