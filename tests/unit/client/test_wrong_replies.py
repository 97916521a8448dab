"""Whatever a server answers, a caller gets a value of the promised type or an error that says
what was seen; and what an error says of the weights is true."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from hotswap.cli.board import Board
from hotswap.cli.outcome import line_of
from hotswap.cli.state import state_lines, state_object
from hotswap.cli.watch import screen
from hotswap.client import ServerEvent, ServerState, Transport, UpdateResult, commands
from hotswap.client.effects import Reply, Steps
from hotswap.client.errors import (
    NoAnswer,
    NotReady,
    OutcomeUnknown,
    ReplyMalformed,
    RequestRefused,
    WeightsAfter,
    weights_after,
)
from hotswap.client.pushing import PushPayload, PushRequest, push
from hotswap.client.session import Fence, ServerKind
from hotswap.client.updating import UpdateRequest, update
from hotswap.errors import HotswapError, UpdateFailed, UpdateRolledBack
from tests.unit.client.scene import TRUTHS, Scene
from tests.unit.client.script import raised, reply, status

PAYLOAD = PushPayload({"a": torch.ones(2)}, transport=Transport.BODY, url="http://server")
UPDATE, PUSH = "/update_weights_from_disk", "/hotswap/v1/push"
HTML = b"<!DOCTYPE html><html><head><title>Log \x1b in</title></head></html>"
WRONG: tuple[Any, ...] = (
    *(None, True, -1, 3, 1.5, math.nan, math.inf, 10**400, "x", "\x1b[2J", "[/b]", ""),
    *([], [1], [None], ["x"], [[]], {}, {"a": 1}, [{}]),
)

Call = Callable[[Scene], Steps[Any]]

HOTSWAP: Mapping[str, tuple[Call, tuple[str, ...]]] = {
    "state": (lambda s: commands.state(s.session, budget=s.budget(3)), ("/status",)),
    "wait_ready": (lambda s: commands.wait_ready(s.session, budget=s.budget(3)), ("/ready",)),
    "pause": (
        lambda s: commands.pause(s.session, mode=None, budget=s.budget(3)),
        ("/pause_generation",),
    ),
    "resume": (lambda s: commands.resume(s.session, budget=s.budget(3)), ("/continue_generation",)),
    "flush": (
        lambda s: commands.flush(s.session, times=2, every_s=0.1, budget=s.budget(3)),
        ("/flush_cache",),
    ),
    "update": (
        lambda s: update(s.session, UpdateRequest(source="b"), budget=s.budget(3)),
        ("/status", UPDATE),
    ),
    "push": (lambda s: push(s.session, PAYLOAD, PushRequest(), budget=s.budget(3)), (PUSH,)),
}
SGLANG: Mapping[str, tuple[Call, tuple[str, ...]]] = {
    "state": (HOTSWAP["state"][0], ("/model_info", "/v1/loads", "/ping")),
    "wait_ready": (HOTSWAP["wait_ready"][0], ("/health",)),
    "update": (HOTSWAP["update"][0], ("/model_info", "/v1/loads", UPDATE)),
}
CASES = [
    pytest.param(call, path, kind, id=f"{kind}-{name}-{path}")
    for kind, calls in ((ServerKind.HOTSWAP, HOTSWAP), (ServerKind.SGLANG, SGLANG))
    for name, (call, paths) in calls.items()
    for path in paths
]


def wrong_versions(value: Any) -> Iterator[Any]:
    """``value`` with one part of it, at whatever depth, replaced by each of ``WRONG``."""
    yield from WRONG
    if not isinstance(value, dict | list):
        return
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        for wrong in wrong_versions(part):
            changed = value.copy()
            changed[key] = wrong
            yield changed


def show(found: object) -> None:
    """As the commands do."""
    if isinstance(found, ServerState):
        board = Board()
        board.see(found)
        assert isinstance(board.line(), str)
        assert all(isinstance(value, str) for _, value in state_lines(found))
        json.dumps(state_object(found), allow_nan=False)
        if "[" in "".join(value for _, value in state_lines(found)):
            console = Console(width=80)
            with console.capture() as captured:
                console.print(screen(board))
            assert "\x1b[2J" not in captured.get()
    if isinstance(found, UpdateResult):
        assert isinstance(line_of(found), str)


def ended(call: Call, scene: Scene) -> HotswapError | None:
    """The error that ``call`` ends with; what it returns can be shown."""
    try:
        show(scene.run(call(scene)))
    except HotswapError as error:
        return error
    return None


@pytest.mark.parametrize(("call", "path", "kind"), CASES)
def test_a_field_of_any_other_type(call: Call, path: str, kind: ServerKind) -> None:
    truth = json.loads(TRUTHS[path].body)
    for body in wrong_versions(truth):
        lie = Reply(status=TRUTHS[path].status, body=json.dumps(body).encode())
        scene = Scene({path: lie}, kind=kind)
        error = ended(call, scene)
        if isinstance(error, ReplyMalformed):
            assert "the server answered with " in str(error)
            assert ", wanted " in str(error)
        if path in (UPDATE, PUSH) and error is not None:
            # It was done, or nobody knows: no error may say that nothing was.
            assert weights_after(error) in (WeightsAfter.UNKNOWN, WeightsAfter.PUT_BACK)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["error", "message", "code", "success", "detail", "object", "facts", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
headers = st.dictionaries(
    st.sampled_from(["x-hotswap-error", "content-type", "location", "retry-after"]),
    st.sampled_from(["Busy", "UpdateFailed", "LocalDamaged", "x", "text/html", "__all__", "é", ""]),
    max_size=3,
)
bodies = st.binary(max_size=20) | json_values.map(lambda value: json.dumps(value).encode())
replies = st.builds(
    Reply,
    status=st.sampled_from([100, 200, 204, 206, 301, 304, 307, 400, 404, 409, 429, 500, 502, 503]),
    headers=headers,
    body=bodies | st.just(HTML),
)


# How fast a busy machine draws examples says nothing about replies.
@pytest.mark.parametrize(("call", "path", "kind"), CASES)
@settings(deadline=None, max_examples=10, suppress_health_check=list(HealthCheck))
@given(lie=replies)
def test_any_reply_at_all(call: Call, path: str, kind: ServerKind, lie: Reply) -> None:
    ended(call, Scene({path: lie}, kind=kind))


@settings(deadline=None, max_examples=10)
@given(lie=replies)
def test_whatever_it_says_of_whose_server_it_is(lie: Reply) -> None:
    scene = Scene({"/status": lie})
    scene.session.kind = None
    ended(HOTSWAP["state"][0], scene)


@pytest.mark.parametrize("body", [b"", b"ok", b"[1]", b"\xff"])
def test_what_is_no_object_says_nothing_of_whose_server_it_is(body: bytes) -> None:
    scene = Scene({"/status": Reply(status=200, body=body)})
    scene.session.kind = None
    raised(ReplyMalformed, lambda: run(HOTSWAP["state"][0], scene))
    assert scene.session.kind is None


@settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))
@given(
    tells=st.dictionaries(
        st.sampled_from(["update", "source", "version", "weight_version", "staged_ms", "reason"]),
        json_values,
    )
)
def test_any_event_of_an_update(tells: dict[str, Any]) -> None:
    board = Board()
    event = ServerEvent(id="x-1", name="update", tells={**tells, "phase": "committed"})
    with suppress(ReplyMalformed):
        assert str(board.hear(event)).startswith("update ")
    assert len(board.updates) <= 1
    Console(width=80, quiet=True).print(screen(board))


# --- redirects and pages


@pytest.mark.parametrize("status_code", [300, 301, 302, 303, 304, 307, 308])
@pytest.mark.parametrize(("call", "path", "kind"), CASES)
def test_a_redirect_is_no_success_and_nothing_was_done(
    call: Call, path: str, kind: ServerKind, status_code: int
) -> None:
    if path in ("/v1/loads", "/ping"):
        return  # without these an SGLang server still has a state
    sent = Reply(status=status_code, headers={"location": "http://elsewhere/x"})
    error = raised(RequestRefused, lambda: run(call, Scene({path: sent}, kind=kind)))
    assert isinstance(error, RequestRefused)
    assert error.status == status_code
    assert f"{status_code}: a redirect to 'http://elsewhere/x'" in str(error)
    assert "give the address of the server itself" in str(error)
    assert weights_after(error) is WeightsAfter.UNTOUCHED


def run(call: Call, scene: Scene) -> Any:
    return scene.run(call(scene))


def test_a_redirect_that_leads_nowhere() -> None:
    scene = Scene({"/continue_generation": Reply(status=304)})
    error = raised(RequestRefused, lambda: run(HOTSWAP["resume"][0], scene))
    assert "304: a redirect, which is not followed" in str(error)


@pytest.mark.parametrize("name", ["state", "pause", "resume", "flush"])
@pytest.mark.parametrize(
    "page",
    [Reply(status=200, body=HTML), Reply(status=200, headers={"content-type": "text/html; x"})],
)
def test_a_page_for_people_is_no_success(name: str, page: Reply) -> None:
    call, (path,) = HOTSWAP[name]
    error = raised(ReplyMalformed, lambda: run(call, Scene({path: page})))
    assert "an HTML page" in str(error)
    scene = Scene({"/status": page})
    scene.session.kind = None
    raised(ReplyMalformed, lambda: run(HOTSWAP["state"][0], scene))


def test_a_page_says_its_title() -> None:
    scene = Scene({"/status": Reply(status=404, body=HTML)})
    error = raised(RequestRefused, lambda: run(HOTSWAP["state"][0], scene))
    assert str(error).endswith(r"the server answered 404: an HTML page 'Log \x1b in'")


@pytest.mark.parametrize(
    "page", [Reply(status=200), Reply(status=200, body=b"ok"), reply(200, [1])]
)
def test_a_pause_whose_reply_nobody_can_read_may_be_in_effect(page: Reply) -> None:
    scene = Scene({"/pause_generation": page})
    fence = Fence(mode="abort")
    error = raised(
        ReplyMalformed,
        lambda: scene.run(commands.enter_fence(scene.session, fence, budget=scene.budget(3))),
    )
    assert "wanted a JSON object" in str(error)
    scene.run(
        commands.leave_fence(
            scene.session, fence, error=error, entering=True, budget=scene.budget(3)
        )
    )
    assert scene.paths == ["/pause_generation", "/continue_generation"]


# --- what a lost or unreadable reply of an update means


@pytest.mark.parametrize("lie", [{"missing": 3}, {"staged_ms": "1"}, {"weight_epoch": [1]}])
def test_an_update_that_was_done_and_told_wrongly(lie: dict[str, Any]) -> None:
    body = {**json.loads(TRUTHS[UPDATE].body), **lie}
    looks = [status(), status(epoch=1, model_path="b")]
    scene = Scene({UPDATE: reply(200, body), "/status": lambda: looks.pop(0)})
    result = run(HOTSWAP["update"][0], scene)
    assert (result.confirmed_by, result.weight_epoch, result.tensors) == ("state", 1, None)
    scene = Scene({UPDATE: reply(200, body)})
    # Told to be done, and not to be seen: nobody has said that anything was put back.
    raised(OutcomeUnknown, lambda: run(HOTSWAP["update"][0], scene))
    scene = Scene({UPDATE: reply(200, body)}, kind=ServerKind.SGLANG)
    raised(OutcomeUnknown, lambda: run(HOTSWAP["update"][0], scene))


# What comes of a server that died of it, or of something on the way.
UNSIGNED = [
    Reply(status=500),
    Reply(status=500, body=b"Internal Server Error"),
    Reply(status=500, body=HTML),
    Reply(status=500, body=b'{"detail": "oops"}'),
    Reply(status=500, body=b'{"error": "oops"}'),
    Reply(status=520),
]


@pytest.mark.parametrize("unsigned", UNSIGNED)
def test_an_update_that_something_else_answered_is_not_known_to_be_undone(unsigned: Reply) -> None:
    error = raised(OutcomeUnknown, lambda: run(HOTSWAP["update"][0], Scene({UPDATE: unsigned})))
    assert weights_after(error) is WeightsAfter.UNKNOWN
    said = f"the server answered {unsigned.status}: "
    assert said in str(error)
    assert "look at the state of the server, and send the update again if it did not" in str(error)
    assert "whole, and not those of this update so far" in str(error)
    error = raised(OutcomeUnknown, lambda: run(HOTSWAP["push"][0], Scene({PUSH: unsigned})))
    assert said in str(error)
    assert "look at the state of the server" in str(error)


def test_what_the_state_shows_of_it_is_said_all_the_same() -> None:
    looks = [status(), status(epoch=1, model_path="b")]
    scene = Scene({UPDATE: UNSIGNED[0], "/status": lambda: looks.pop(0)})
    assert run(HOTSWAP["update"][0], scene).confirmed_by == "state"
    torn = [status(), status(weights="torn")]
    scene = Scene({UPDATE: UNSIGNED[0], "/status": lambda: torn.pop(0)})
    raised(UpdateFailed, lambda: run(HOTSWAP["update"][0], scene))


@pytest.mark.parametrize(
    "signed",
    [
        reply(500, {"error": {"code": "internal_error", "message": "no"}}),
        reply(500, {"success": False, "message": "no"}),
        Reply(status=500, headers={"x-hotswap-error": "x"}),
    ],
)
def test_a_failure_that_the_server_tells_of_was_put_back(signed: Reply) -> None:
    error = raised(UpdateRolledBack, lambda: run(HOTSWAP["update"][0], Scene({UPDATE: signed})))
    assert weights_after(error) is WeightsAfter.PUT_BACK


@pytest.mark.parametrize("unsigned", UNSIGNED)
def test_a_pause_that_something_else_refused_may_be_in_effect(unsigned: Reply) -> None:
    scene = Scene({"/pause_generation": unsigned})
    fence = Fence(mode="abort")
    error = raised(
        RequestRefused,
        lambda: scene.run(commands.enter_fence(scene.session, fence, budget=scene.budget(3))),
    )
    scene.run(
        commands.leave_fence(
            scene.session, fence, error=error, entering=True, budget=scene.budget(3)
        )
    )
    assert scene.paths == ["/pause_generation", "/continue_generation"]


def test_labels_of_thousands_of_digits_are_compared_all_the_same() -> None:
    wanted = UpdateRequest(source="b", version="0" + "9" * 5000)
    looks = [status(), status(epoch=1, version="9" * 5000, model_path="b")]
    scene = Scene({UPDATE: Reply(status=200, body=HTML), "/status": lambda: looks.pop(0)})
    result = scene.run(update(scene.session, wanted, budget=scene.budget(3)))
    assert result.confirmed_by == "state"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"token_step": 1.5}, "token_step is 1.5, wanted a whole number"),
        ({"token_step": True}, "token_step is True"),
        ({"source": b"/x"}, "source is a bytes, wanted a text"),
        ({"version": "a\udcff"}, r"version is 'a\udcff', which no JSON can have"),
        ({"flush_times": 0}, "asked for 0 times, wanted 1 or more"),
        ({"flush_every_s": math.nan}, "nan seconds between two flushes"),
        ({"flush_every_s": -1}, "-1 seconds between two flushes"),
        ({"flush_every_s": math.inf}, "inf seconds between two flushes"),
    ],
)
def test_what_cannot_be_sent_is_known_before_anything_is_paused(
    wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        UpdateRequest(**{"source": "b", **wrong})
    assert said in str(caught.value)


@pytest.mark.parametrize("seconds", [0, -1.0, math.nan, -math.inf])
def test_seconds_that_are_none(seconds: float) -> None:
    with pytest.raises(ValueError, match=f"within_s is {seconds:g}, wanted more than 0 seconds"):
        Scene().budget(seconds)


@pytest.mark.parametrize("seconds", [math.inf, 1e10, 1e300])
def test_as_long_as_it_takes(seconds: float) -> None:
    answers = [reply(502)] * 3 + [TRUTHS["/status"]]
    scene = Scene({"/status": lambda: answers.pop(0)})
    assert scene.run(commands.state(scene.session, budget=scene.budget(seconds))).ready
    assert scene.slept == [0.5] * 3


def test_reasons_are_told_when_they_are_none() -> None:
    scene = Scene({"/ready": Reply(status=503, body=HTML)})
    error = raised(NotReady, lambda: run(HOTSWAP["wait_ready"][0], scene))
    assert "status 503" in str(error)
    assert isinstance(raised(NotReady, lambda: run(HOTSWAP["wait_ready"][0], Scene())), NotReady)
    assert not isinstance(error, NoAnswer)
