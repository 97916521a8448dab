"""A27, as a matrix: every form of a payload, refused in every way.

Counted when the reply begins, and after it: references to the segment, descriptors, and what lies
in ``/dev/shm``.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from hotswap.api_keys import ApiKey
from hotswap.testing.rig import settle
from hotswap.wire import take_back
from tests.unit.http.push_matrix import (
    LIMIT_BYTES,
    TENSORS,
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
    going_down,
    in_flight,
    is_gone,
    never_ends,
    never_loaded,
    one_of,
    paused,
)
from tests.unit.http.push_sender import FORMS, Sender


def payloads(change: Callable[[str], object]) -> Callable[[Sender], dict[str, object]]:
    return lambda sender: {"serialized_named_tensors": change(sender.payload)}


def escaped(body: bytes) -> bytes:
    """As PHP writes JSON, and as it may be written too."""
    return body.replace(b"/", b"\\/").replace(b"+", b"\\u002b")


CASES: dict[str, Case] = {
    "done": Case(status=200),
    "done while paused": Case(status=200, prepare=paused),
    "done in a session": Case(status=200, prepare=a_session, fields=lambda s: {"update_id": "u"}),
    "straight into live weights": Case(status=200, settings={"load_mode": "direct"}),
    # What is wrong with what is sent.
    "an unknown format": Case(status=400, fields=lambda s: {"load_format": "os.system"}),
    "a part as a whole": Case(status=400, fields=lambda s: {"scope": "full"}),
    "an unknown scope": Case(status=400, fields=lambda s: {"scope": "some"}),
    "another selector": Case(status=400, fields=lambda s: {"selector": "draft"}),
    "a version that is a list": Case(status=400, fields=lambda s: {"weight_version": []}),
    "an unknown pause mode": Case(status=400, fields=lambda s: {"pause_mode": "soon"}),
    "an endless version": Case(status=400, fields=lambda s: {"weight_version": "7" * 5000}),
    "no payloads": Case(status=400, fields=payloads(lambda text: None), read=False),
    "not in a list": Case(status=400, fields=payloads(lambda text: text)),
    "in a list in a list": Case(status=400, fields=payloads(lambda text: [[text]])),
    "under a wrong name": Case(
        status=400, fields=lambda s: {"serialized_named_tensors": None, "tensors": [s.payload]}
    ),
    "one too many": Case(status=400, fields=payloads(lambda text: [text, "gARdlC4="])),
    "for two ranks": Case(status=400, prepare=one_of(2)),
    "no JSON, which the first of two ranks lets go": Case(
        status=400, prepare=one_of(2), raw=lambda body: [body + b"}"]
    ),
    "and the second does not": Case(
        status=400, prepare=one_of(2, rank=1), raw=lambda body: [body + b"}"], read=False
    ),
    "for another device": Case(status=400, fields=payloads(lambda text: {"GPU-12345678": text})),
    "no base64": Case(status=400, fields=payloads(lambda text: [text + "####"])),
    "base64 in lines": Case(
        status=400, fields=payloads(lambda text: ["\n".join(re.findall(".{1,76}", text))])
    ),
    # What is wrong with the body.
    "no JSON": Case(status=400, raw=lambda body: [body + b"}"]),
    "no JSON, with escapes": Case(status=400, raw=lambda body: [escaped(body)[:-1]]),
    "an array": Case(status=400, raw=lambda body: [b"[" + body + b"]"]),
    "a key that comes twice": Case(
        status=400, raw=lambda body: [b'{"scope": 1,"scope": 2,', body[1:]]
    ),
    "longer than told": Case(status=413, raw=lambda body: [body, b" " * LIMIT_BYTES]),
    "cut off": Case(status=None, raw=lambda body: [body[:-1]], after=is_gone),
    "cut off in the payload": Case(
        status=None, raw=lambda body: [body[: body.index(b'"]')]], after=is_gone
    ),
    "cut off by the end of the server": Case(
        status=503, raw=lambda body: [body[:-1]], after=goes_down
    ),
    # What the server has to do otherwise.
    "requests are in flight": Case(status=409, prepare=in_flight),
    "the weights are released": Case(status=409, prepare=asleep),
    "the weights are not whole": Case(status=200, prepare=never_loaded),
    "another update runs": Case(status=409, prepare=another_update_runs),
    "a session is open": Case(status=409, prepare=a_session),
    "no such session": Case(status=409, fields=lambda s: {"update_id": "u"}),
    "a session that has ended": Case(
        status=409, prepare=an_ended_session, fields=lambda s: {"update_id": "u"}
    ),
    "a session that is busy": Case(
        status=409, prepare=a_session_in_use, fields=lambda s: {"update_id": "u"}
    ),
    "a write fails": Case(
        status=500, prepare=a_write_fails, settings={"load_mode": "direct"}
    ),
    "a commit fails": Case(status=200, prepare=a_commit_fails),
    # What nobody has read.
    "longer than allowed": Case(
        status=413, headers={"content-length": str(LIMIT_BYTES + 1)}, read=False
    ),
    "without a key": Case(status=401, settings={"api_key": ApiKey("one-secret")}, read=False),
    "with a wrong key": Case(
        status=401, settings={"api_key": ApiKey("one-secret")}, read=False,
        headers={"authorization": "Bearer another"},
    ),
    "updates are off": Case(status=403, settings={"allow_weight_update": False}, read=False),
    "another method": Case(status=405, method="PUT", read=False),
    "another path": Case(status=404, path=f"{TENSORS}s", read=False),
    "the server goes down": Case(
        status=503, prepare=going_down, raw=lambda body: [], after=never_ends, read=False
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
async def test_a_payload_is_let_go_before_the_reply(case: Case) -> None:
    for form in FORMS:
        sender, server = Sender(form=form), Server(**case.settings)
        async with server.controller, AsyncExitStack() as stack:
            await case.prepare(server, stack)
            counts = Counts(sender.segment)
            body = json.dumps(sender.body(**case.fields(sender))).encode()
            assert await ended(case, server, body, counts) == case.status, form
        left = 1 if case.read else 2
        assert counts.users == [2, *[left] * (len(counts.users) - 1)]
        # What a sender does that does not know what was read; twice is as good as once.
        for _ in range(2):
            take_back([sender.payload])
            assert sender.users == 1
        sender.let_go()
        assert not sender.segment.exists()


async def test_a_request_that_is_given_up_while_it_waits_lets_it_go_too() -> None:
    sender, server = Sender(), Server()
    decoders = server.served.decoders
    async with server.controller:
        await decoders.acquire_on_behalf_of(server)
        asked = asyncio.ensure_future(server.ask(TENSORS, [json.dumps(sender.body()).encode()]))
        await settle()
        assert (decoders.statistics().tasks_waiting, sender.users) == (1, 2)
        asked.cancel()
        await asyncio.wait([asked])
        assert asked.cancelled()
        assert sender.users == 1
        decoders.release_on_behalf_of(server)
