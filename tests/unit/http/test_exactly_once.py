"""Requests that end, are aborted and lose their clients in any order, on the scripted engine."""

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from hotswap.testing.asgi_call import AsgiCall
from hotswap.testing.rig import settle
from hotswap.testing.scripted_engine import ScriptedEngine

COUNT = 32


def bodies() -> dict[str, tuple[str, dict[str, Any]]]:
    """Path and body by id: whole, streamed, batches of two, submitted."""
    made: dict[str, tuple[str, dict[str, Any]]] = {}
    for number in range(COUNT):
        rid = f"r{number}"
        made[rid] = (
            ("/generate", {"text": "a", "rid": rid}),
            ("/generate", {"text": "a", "rid": rid, "stream": True}),
            ("/generate", {"text": ["a", "b"], "rid": rid}),
            ("/submit", {"text": "a", "request_id": rid}),
        )[number % 4]
    return made


def final_replies(messages: list[Any]) -> int:
    """How many final replies a client was sent. No message: it had gone, or was never heard."""
    if not messages:
        return 0
    start, *rest = messages
    assert start["status"] in (200, 202)
    payload = b"".join(message["body"] for message in rest)
    if not payload:
        return 0
    if not payload.startswith(b"data: "):
        body = json.loads(payload)
        return 1 if isinstance(body, dict) else len(body) // 2
    events = [json.loads(event[6:]) for event in payload.split(b"\n\n") if b"{" in event]
    return sum(event["meta_info"]["finish_reason"] is not None for event in events)


@pytest.mark.parametrize("seed", range(5))
async def test_every_request_has_one_end_and_leaves_nothing(
    serve: Callable[..., Any], seed: int
) -> None:
    serving = serve(engine=ScriptedEngine(reply=None))
    order = random.Random(seed)
    tasks_before = len(asyncio.all_tasks())
    door = serving.commands.admission.door = anyio.Event()
    gone: set[str] = set()
    async with AsyncExitStack() as stack:
        calls = {
            rid: await stack.enter_async_context(AsgiCall(serving.app, "POST", path, body))
            for rid, (path, body) in bodies().items()
        }

        async def leave(rid: str) -> None:
            gone.add(rid)
            calls[rid].disconnect()

        async def abort(rid: str) -> None:
            reply = await serving.client.post("/abort_request", json={"rid": rid})
            assert reply.status_code == 200

        async def end(rid: str) -> None:
            for name, one in serving.engine.generations.items():
                if name in (rid, f"{rid}_0", f"{rid}_1") and not one.ended:
                    one.emit(b"x")
                    one.finish("length")

        steps = [(order.choice([leave, abort, end]), rid) for rid in calls for _ in range(3)]
        order.shuffle(steps)
        await settle()
        for number, (step, rid) in enumerate(steps):
            if number == len(steps) // 3:
                door.set()
                await settle()
            await step(rid)
            if order.random() < 0.5:
                await settle()
        for rid in calls:
            await end(rid)
        sent = {rid: final_replies(await call.finished()) for rid, call in calls.items()}

    await settle()
    assert {sent[rid] for rid in calls if rid not in gone} == {1}
    assert all(count <= 1 for count in sent.values())
    assert len(serving.app.state.served.requests) == 0
    assert all(one.ended or one.aborted.is_set() for one in serving.engine.generations.values())
    assert serving.commands.admission.entering == 0
    assert len(asyncio.all_tasks()) == tasks_before
    rows = (await serving.json("GET", "/requests"))[1]["requests"]
    assert {row["state"] for row in rows} <= {"finished", "aborted"}
    submitted = {row["request_id"] for row in rows}
    accepted = {rid for rid, (path, _) in bodies().items() if path == "/submit" and sent[rid]}
    assert submitted == accepted
