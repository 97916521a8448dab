"""A27, as a matrix, on hotswap's own wire: a body, and shared memory, refused in every way.

No reference travels with either: the segment stays its sender's, and goes where that has ended.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hotswap.api_keys import ApiKey
from hotswap.push import SafetensorsBody, SharedTensors
from hotswap.testing.fakes import fake_weights
from tests.unit.http.push_matrix import (
    PUSH,
    Case,
    Counts,
    Server,
    a_commit_fails,
    a_session,
    a_session_in_use,
    a_write_fails,
    an_ended_session,
    another_update_runs,
    asleep,
    ended,
    goes_down,
    in_flight,
    is_gone,
    never_loaded,
    paused,
)

BOTH: dict[str, Case] = {
    "done": Case(status=200),
    "done while paused": Case(status=200, prepare=paused),
    "straight into live weights": Case(status=200, settings={"load_mode": "direct"}),
    "the weights are not whole": Case(status=200, prepare=never_loaded),
    "a commit fails": Case(status=200, prepare=a_commit_fails),
    "a write fails": Case(status=200, prepare=a_write_fails),
    "requests are in flight": Case(status=409, prepare=in_flight),
    "the weights are released": Case(status=409, prepare=asleep),
    "another update runs": Case(status=409, prepare=another_update_runs),
    "a session is open": Case(status=409, prepare=a_session),
    "cut off": Case(status=None, raw=lambda body: [body[:-1]], after=is_gone),
    "cut off by the end of the server": Case(
        status=503, raw=lambda body: [body[:-1]], after=goes_down
    ),
    "without a key": Case(status=401, settings={"api_key": ApiKey("one-secret")}),
    "updates are off": Case(status=403, settings={"allow_weight_update": False}),
    "another method": Case(status=405, method="PUT"),
    "too long a header": Case(status=400, raw=lambda body: [b"\xff" * 8, body]),
    "something behind it": Case(status=400, raw=lambda body: [body, b"x"]),
}
ADDED: dict[str, tuple[Case, dict[str, object]]] = {
    "done in a session": (Case(status=200, prepare=a_session), {"update_id": "u"}),
    "an unknown scope": (Case(status=400), {"scope": "some"}),
    "no such session": (Case(status=409), {"update_id": "u"}),
    "a session that has ended": (Case(status=409, prepare=an_ended_session), {"update_id": "u"}),
    "a session that is busy": (Case(status=409, prepare=a_session_in_use), {"update_id": "u"}),
    "another nonce": (Case(status=400), {"nonce": "0" * 64}),
    "another size": (Case(status=400), {"size_bytes": 2**40}),
    "another segment": (Case(status=400), {"segment": "torch_1_2_3"}),
    "a path": (Case(status=400), {"segment": "../../etc/passwd"}),
    "no tensors": (Case(status=400), {"tensors": []}),
    "a tensor outside": (
        Case(status=400),
        {"tensors": [{"name": "a", "dtype": "F32", "shape": [4], "offset": 2**62}]},
    ),
    "over the nonce": (
        Case(status=400),
        {"tensors": [{"name": "\0nonce", "dtype": "U8", "shape": [32], "offset": 0}]},
    ),
}
"""Of shared memory only, with these fields in place of what it says."""


def segment_of(described: Any) -> Path:
    return Path("/dev/shm") / str(described["segment"]).removeprefix("/")


@pytest.mark.parametrize("name", [*BOTH, *ADDED])
async def test_shared_memory_stays_its_sender_s(name: str) -> None:
    case, fields = ADDED.get(name) or (BOTH[name], {})
    server = Server(**case.settings)
    with SharedTensors.of(fake_weights(2.0).items()) as shared:
        described = msgspec.to_builtins(shared.description())
        segment = segment_of(described)
        async with server.controller, AsyncExitStack() as stack:
            await case.prepare(server, stack)
            counts = Counts(segment)
            body = json.dumps({**described, **fields}).encode()
            found = await ended(replace(case, path=PUSH), server, body, counts)
            assert found == case.status
        assert set(counts.users) == {1}
    del shared
    assert not segment.exists()


@pytest.mark.parametrize("name", BOTH)
async def test_a_body_leaves_nothing(name: str) -> None:
    case = BOTH[name]
    server = Server(**case.settings)
    with SharedTensors.of(fake_weights(0.0).items()) as beside:
        async with server.controller, AsyncExitStack() as stack:
            await case.prepare(server, stack)
            counts = Counts(segment_of(msgspec.to_builtins(beside.description())))
            body = b"".join(SafetensorsBody(fake_weights(2.0).items()))
            headers = {"content-type": "application/octet-stream"}
            streamed = replace(case, path=PUSH, headers=headers)
            assert await ended(streamed, server, body, counts) == case.status


DESCRIBES = """
import msgspec, sys
from hotswap.push import SharedTensors
from hotswap.testing.fakes import fake_weights
made = [SharedTensors.of(fake_weights(2.0).items()) for _ in range(3)]
print(msgspec.json.encode([shared.description() for shared in made]).decode(), flush=True)
sys.stdin.read()
"""
DEAD: list[tuple[dict[str, object], bool]] = [
    ({}, False),
    ({"update_id": "u"}, False),
    ({"nonce": "0" * 64}, True),
]


def described_by_a_process_that_was_killed() -> list[dict[str, Any]]:
    with subprocess.Popen(
        [sys.executable, "-c", DESCRIBES], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        described: list[dict[str, Any]] = json.loads(process.stdout.readline())
        process.kill()
    return described


async def test_a_segment_goes_with_its_sender_for_who_has_seen_it() -> None:
    """Pushed, or refused; and not for who has guessed its name."""
    made = described_by_a_process_that_was_killed()
    for described, (fields, stays) in zip(made, DEAD, strict=True):
        segment = segment_of(described)
        assert segment.exists()
        server = Server()
        async with server.controller:
            await server.ask(PUSH, [json.dumps({**described, **fields}).encode()])
        assert segment.exists() is stays
        segment.unlink(missing_ok=True)
