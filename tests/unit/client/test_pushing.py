"""A push is sent again when that helps, and as a body where memory is not shared."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hotswap.client import Transport
from hotswap.client.effects import Send
from hotswap.client.errors import NoAnswer, OutcomeUnknown, RequestRefused
from hotswap.client.pushing import PushPayload, PushRequest, push
from hotswap.client.session import Fence, ServerKind
from hotswap.client.shown import UpdateResult
from hotswap.errors import HotswapError, UpdateFailed, UpdateRejected
from hotswap.push import SharedTensors
from tests.unit.client.script import LOST, NEVER_SENT, Answer, Script, raised, reply, status

PATH = "/hotswap/v1/push"
HERE, AWAY = "http://127.0.0.1:30000", "http://trainer.example:30000"
TENSORS = {"a": torch.ones(2), "b": torch.zeros(3)}
DONE = reply(200, {"success": True, "weight_version": "7", "tensors_loaded": 2})
BUSY = reply(409, {"error": {"code": "busy", "message": "another", "retryable": True}})
UNSEEN = reply(400, {"message": "another nonce"}, x_hotswap_error="SegmentNotSeen")


class Noted(Script):
    """Shows itself first, and notes what content is sent."""

    def __init__(self, *answers: Answer, kind: ServerKind | None = ServerKind.HOTSWAP) -> None:
        looks = [] if kind is ServerKind.SGLANG else [status()]
        super().__init__(*looks, *answers, kind=kind)
        self.sent: list[Send] = []

    def _perform(self, effect: Any) -> object:
        if isinstance(effect, Send) and effect.content is not None:
            self.sent.append(effect)
        return super()._perform(effect)

    @property
    def kinds(self) -> list[str]:
        """Media types, in order."""
        return [one.content.media_type.rpartition("/")[2] for one in self.sent if one.content]


def pushed(
    script: Script,
    payload: PushPayload,
    wanted: PushRequest | None = None,
    *,
    within_s: float = 600.0,
) -> UpdateResult:
    asked = wanted or PushRequest(version="7")
    return script.run(push(script.session, payload, asked, budget=script.budget(within_s)))


@pytest.fixture(params=[HERE, AWAY])
def payload(request: pytest.FixtureRequest) -> Iterator[PushPayload]:
    with PushPayload(TENSORS, transport=Transport.AUTO, url=request.param) as payload:
        yield payload


def own_segments() -> set[Path]:
    return set(Path("/dev/shm").glob(f"torch_{os.getpid()}_*"))


@pytest.mark.parametrize(
    "answers",
    [
        [reply(401, {"error": {"code": "unauthorized"}})],
        [reply(403, {"error": {"code": "route_disabled"}})],
        [reply(404, {"detail": "Not Found"}), status()],
        [reply(413, {"error": {"code": "payload_too_large"}})],
        [reply(503, {"error": {"code": "shutting_down", "retryable": True}})],
        [NEVER_SENT],
        [UNSEEN, LOST, BUSY, reply(400, {"error": {"code": "x"}})],
    ],
)
def test_memory_goes_with_the_push_also_where_the_server_has_read_nothing(
    answers: list[Answer],
) -> None:
    before = own_segments()
    script = Noted(*answers)
    with PushPayload(TENSORS, transport=Transport.AUTO, url=HERE) as payload:
        assert len(own_segments() - before) == 1
        with pytest.raises(HotswapError):
            pushed(script, payload, PushRequest(attempts=1))
    assert own_segments() == before


def test_memory_on_one_machine_and_bytes_to_another() -> None:
    for url, kind, path in (
        (HERE, "json", PATH),
        ("http://localhost:1", "json", PATH),
        ("http://[::1]:1", "json", PATH),
        (
            AWAY,
            "octet-stream",
            f"{PATH}?scope=full&flush_cache=true&weight_version=7&pause_mode=retract",
        ),
    ):
        script = Noted(DONE)
        with PushPayload(TENSORS, transport=Transport.AUTO, url=url) as payload:
            result = pushed(script, payload)
        assert (result.weight_version, result.tensors) == ("7", 2)
        assert (script.paths, script.kinds) == (["/status", path], [kind])
        content = script.sent[0].content
        assert content is not None
        if kind == "octet-stream":
            assert sum(map(len, content.pieces)) == content.length
            continue
        told = json.loads(b"".join(content.pieces))
        assert (told["weight_version"], told["scope"]) == ("7", "full")
        assert [one["name"] for one in told["tensors"]] == ["a", "b"]


def test_memory_that_the_server_does_not_see_goes_as_a_body() -> None:
    script = Noted(UNSEEN, DONE)
    with PushPayload(TENSORS, transport=Transport.AUTO, url=HERE) as payload:
        pushed(script, payload)
        assert payload.shared is None
    assert script.kinds == ["json", "octet-stream"]
    script = Noted(UNSEEN)
    with PushPayload(TENSORS, transport=Transport.SHARED_MEMORY, url=AWAY) as payload:
        raised(UpdateRejected, lambda: pushed(script, payload))


def test_memory_of_the_caller_stays_the_caller_s() -> None:
    with SharedTensors.of(TENSORS.items()) as shared:
        for transport in Transport:
            script = Noted(DONE)
            with PushPayload(shared, transport=transport, url=AWAY) as payload:
                pushed(script, payload)
            assert script.kinds == ["octet-stream" if transport is Transport.BODY else "json"]
        assert torch.equal(shared.tensors["a"], TENSORS["a"])


def test_without_room_the_bytes_go(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_size: int) -> None:
        raise OSError("/dev/shm has 0 bytes left")

    monkeypatch.setattr("hotswap.push.segment.check_room", full)
    with PushPayload(TENSORS, transport=Transport.AUTO, url=HERE) as payload:
        assert payload.shared is None
        assert repr(payload) == "<PushPayload 2 tensors, a body>"
    with pytest.raises(OSError, match="0 bytes left"):
        PushPayload(TENSORS, transport=Transport.SHARED_MEMORY, url=HERE)


def test_it_is_sent_again_when_nobody_knows(payload: PushPayload) -> None:
    script = Noted(NEVER_SENT, LOST, DONE)
    pushed(script, payload)
    assert len(script.sent) == 3
    script = Noted(BUSY, BUSY, DONE)
    pushed(script, payload)
    script = Noted(BUSY, BUSY, BUSY)
    error = raised(NoAnswer, lambda: pushed(script, payload))
    seen = "sent 3 times within 600 s, and not done: the server answered 409: another; look at"
    assert str(error).startswith(f"push of 2 tensors to http://server: {seen}")
    script = Noted(NEVER_SENT, NEVER_SENT, NEVER_SENT)
    raised(NoAnswer, lambda: pushed(script, payload))


# The last answer is that to a look at what became of it.
@pytest.mark.parametrize(
    ("answers", "within_s"),
    [
        ([LOST, LOST], 10.0),
        ([LOST, NEVER_SENT, NEVER_SENT, reply(401)], 600.0),
        ([*[LOST] * 3, status()], 600.0),
    ],
)
def test_what_was_sent_may_have_been_done(
    payload: PushPayload, answers: list[Answer], within_s: float
) -> None:
    script = Noted(*answers)
    error = raised(OutcomeUnknown, lambda: pushed(script, payload, within_s=within_s))
    assert "wanted to know whether it changed the weights" in str(error)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (reply(400, {"message": "missing"}, x_hotswap_error="PayloadRefused"), UpdateRejected),
        (reply(500, {"message": "torn"}, x_hotswap_error="UpdateFailed"), UpdateFailed),
        (reply(403, {"message": "no"}, x_hotswap_error="Forbidden"), RequestRefused),
    ],
)
def test_an_answer_is_what_it_says(
    payload: PushPayload, answer: Any, error: type[Exception]
) -> None:
    raised(error, lambda: pushed(Noted(answer), payload))


def test_sglang_s_servers_have_no_such_route(payload: PushPayload) -> None:
    script = Noted(kind=ServerKind.SGLANG)
    error = raised(UpdateRejected, lambda: pushed(script, payload))
    assert "update_weights_from_tensor" in str(error)
    assert script.sent == []


def test_inside_a_fence_nothing_is_paused_and_labels_that_are_not_said_are_not_sent() -> None:
    script = Noted(DONE)
    script.session.fences.append(Fence(mode="abort"))
    wanted = PushRequest(scope="partial", flush_cache=False, token_step=3, update_id="mine")
    with PushPayload(list(TENSORS.items()), transport=Transport.BODY, url=HERE) as payload:
        pushed(script, payload, wanted)
    said = "scope=partial&flush_cache=false&token_step=3&update_id=mine"
    assert script.paths == ["/status", f"{PATH}?{said}"]


@pytest.mark.parametrize("url", [HERE, AWAY])
def test_arrays_of_numpy_are_tensors_too(url: str) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    fixed = array.copy()
    fixed.flags.writeable = False
    given = {"a": array, "turned": array.T, "fixed": fixed}
    tensors = {name: torch.from_numpy(value.copy()) for name, value in given.items()}
    with (
        PushPayload(given, transport=Transport.BODY, url=url) as arrays,
        PushPayload(tensors, transport=Transport.BODY, url=url) as same,
    ):
        assert b"".join(arrays.body) == b"".join(same.body)


@pytest.mark.parametrize(
    ("tensors", "transport", "error", "named"),
    [
        ({"a": [1.0]}, "auto", TypeError, "tensor 'a' is a list, wanted a torch.Tensor or a numpy"),
        ({"a": None}, "body", TypeError, "tensor 'a' is a NoneType, wanted"),
        ({}, "auto", ValueError, "a push without a tensor changes nothing"),
        (TENSORS, "ipc", ValueError, "'ipc', wanted one of auto, body, shared_memory"),
        (TENSORS, None, ValueError, "None, wanted one of auto, body, shared_memory"),
    ],
)
def test_what_cannot_be_sent_is_named(
    tensors: Any, transport: Any, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        PushPayload(tensors, transport=transport, url=HERE)


def test_a_scope_that_is_none_costs_no_copy() -> None:
    with pytest.raises(ValueError, match="scope 'some', wanted one of full, partial"):
        PushRequest(scope="some")
