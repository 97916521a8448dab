"""A commit says what it wants, and is sent until it is answered."""

from __future__ import annotations

from typing import Any

import pytest

from hotswap.cli.state import state_lines
from hotswap.client.committing import CommitRequest, commit
from hotswap.client.errors import NoAnswer, OutcomeUnknown, RequestRefused
from hotswap.client.session import Fence, ServerKind
from hotswap.client.shown import ServerState, UpdateResult
from hotswap.errors import UpdateRejected
from hotswap.stream import NotPulled
from tests.unit.client.script import LOST, NEVER_SENT, Script, raised, reply, status

PATH = "/hotswap/v1/commit"
DONE = reply(200, {"success": True, "weight_version": "7", "tensors_loaded": 2, "mode": "sparse"})
BUSY = reply(409, {"error": {"code": "busy", "message": "another", "retryable": True}})


def committed(
    script: Script, wanted: CommitRequest | None = None, *, within_s: float = 600.0
) -> UpdateResult:
    asked = wanted or CommitRequest()
    return script.run(commit(script.session, asked, budget=script.budget(within_s)))


def test_it_says_what_it_wants() -> None:
    named = CommitRequest(
        version=7, wait_s=5, label="x", token_step=3, pause_mode="abort", flush_cache=False
    )
    bodies = list[object]()
    for wanted, fences in ((None, 0), (named, 0), (None, 1)):
        script = Script(status(), DONE)
        script.session.fences += [Fence()] * fences
        committed(script, wanted)
        bodies += [body for path, body in script.asked if path == PATH]
    assert bodies == [
        {"flush_cache": True, "wait_s": 0.0, "pause_mode": "retract"},
        {
            "version": 7,
            "wait_s": 5,
            "weight_version": "x",
            "token_step": 3,
            "pause_mode": "abort",
            "flush_cache": False,
        },
        {"flush_cache": True, "wait_s": 0.0},
    ]


def test_it_is_sent_until_it_is_answered() -> None:
    result = committed(Script(status(), LOST, BUSY, DONE))
    assert (result.weight_version, result.tensors, result.mode) == ("7", 2, "sparse")


def test_nobody_answers() -> None:
    with pytest.raises(NoAnswer):
        committed(Script(LOST), within_s=2)
    # It was sent, and may be done.
    with pytest.raises(OutcomeUnknown, match=r"ReadTimeout: gone; then .* was not answered within"):
        committed(Script(status(), LOST), within_s=2)
    # It was not sent.
    with pytest.raises(NoAnswer):
        committed(Script(status(), *[NEVER_SENT] * 7), within_s=2)


def test_what_is_not_there() -> None:
    body = {"success": False, "message": "holds version 6", "local_version": 6}
    answer = reply(409, body, x_hotswap_error="NotPulled")
    error = raised(NotPulled, lambda: committed(Script(status(), answer)))
    assert "commit of what is pulled" in str(error)
    assert isinstance(error, NotPulled)
    assert error.local_version == 6
    with pytest.raises(RequestRefused):
        committed(Script(status(), reply(403, {"error": {"code": "route_disabled"}})))


def test_sglang_s_servers_follow_nothing() -> None:
    with pytest.raises(UpdateRejected, match="follow no stream"):
        committed(Script(kind=ServerKind.SGLANG))


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (TypeError, {"version": "7"}),
        (TypeError, {"version": True}),
        (ValueError, {"wait_s": -1.0}),
        (ValueError, {"wait_s": float("inf")}),
        (TypeError, {"label": 7}),
    ],
)
def test_what_cannot_be_sent(kind: type[Exception], wrong: dict[str, Any]) -> None:
    with pytest.raises(kind):
        CommitRequest(**wrong)


def test_how_a_follower_is_shown() -> None:
    follow = {
        "state": "failing",
        "live_version": 4,
        "pulled_version": 5,
        "newest_version": None,
        "versions_behind": 1,
        "bytes_behind": 2_000_000,
        "seconds_behind": 3.2,
        "reason": "away",
    }
    seen = ServerState(server=ServerKind.HOTSWAP, ready=True, follow=follow)
    assert dict(state_lines(seen))["follow"] == (
        "failing (live 4, pulled 5, newest -), 1 version, 2.0 MB and 3 s behind: away"
    )
