"""A proxy whose server is away is asked again, and is never taken for the server."""

from __future__ import annotations

from functools import partial

import pytest

from hotswap.client import commands
from hotswap.client.effects import Reply
from hotswap.client.errors import NoAnswer, NotReady, OutcomeUnknown, RequestRefused
from hotswap.client.feed import Feed
from hotswap.client.session import Fence, ServerKind
from hotswap.errors import ShuttingDown, UpdateRejected, WeightsNotWhole
from tests.unit.client.scene import TRUTHS, Scene
from tests.unit.client.script import Script, raised, reply
from tests.unit.client.test_wrong_replies import HOTSWAP, PUSH, SGLANG, UPDATE, run

AWAY = [
    Reply(status=502, headers={"content-type": "text/html"}, body=b"<html><title>502</title>"),
    Reply(status=503, body=b"no healthy upstream"),
    Reply(status=504),
    reply(503, {"message": "failure to get a peer from the ring-balancer"}),
]


def next_of(answers: list[Reply]) -> Reply:
    return answers.pop(0) if len(answers) > 1 else answers[0]


@pytest.mark.parametrize("away", AWAY, ids=lambda away: f"{away.status}-{away.body[:6]!r}")
@pytest.mark.parametrize("name", [*HOTSWAP, "sglang-state", "sglang-update"])
def test_it_is_asked_again_until_the_server_answers(name: str, away: Reply) -> None:
    kind = ServerKind.SGLANG if name.startswith("sglang-") else ServerKind.HOTSWAP
    call, paths = (SGLANG if kind is ServerKind.SGLANG else HOTSWAP)[name.removeprefix("sglang-")]
    for path in paths:
        if path == "/ready" and away.status == 503:
            continue  # that is its own answer
        truth = reply(200) if path == "/ready" else TRUTHS[path]
        answers = [away, away, truth]
        scene = Scene({path: partial(next_of, answers)}, kind=kind)
        if path == "/ping" and away.status == 503:
            assert not run(call, scene).ready
            continue
        run(call, scene)
        assert len(answers) == 1
        assert scene.paths.count(path) >= 3
        assert scene.slept.count(0.5) == 2


@pytest.mark.parametrize("name", ["state", "pause", "resume", "flush"])
def test_one_that_stays_away_is_no_answer(name: str) -> None:
    call, (path,) = HOTSWAP[name]
    error = raised(NoAnswer, lambda: run(call, Scene({path: AWAY[0]})))
    assert "something on the way answered 502 in its place: an HTML page '502'" in str(error)


def test_a_push_or_an_update_that_a_proxy_gave_up_waiting_for() -> None:
    raised(OutcomeUnknown, lambda: run(HOTSWAP["push"][0], Scene({PUSH: AWAY[2]})))
    # The state of the server shows that it was not done.
    scene = Scene({UPDATE: AWAY[2]})
    raised(NoAnswer, lambda: run(HOTSWAP["update"][0], scene))
    assert scene.paths.count(UPDATE) == 3
    # SGLang's shows nothing.
    scene = Scene({UPDATE: AWAY[2]}, kind=ServerKind.SGLANG)
    raised(OutcomeUnknown, lambda: run(HOTSWAP["update"][0], scene))


def test_a_pause_that_a_proxy_gave_up_waiting_for_is_continued() -> None:
    scene, fence = Scene({"/pause_generation": AWAY[2]}), Fence()
    error = raised(
        NoAnswer,
        lambda: scene.run(commands.enter_fence(scene.session, fence, budget=scene.budget(1))),
    )
    scene.run(
        commands.leave_fence(
            scene.session, fence, error=error, entering=True, budget=scene.budget(1)
        )
    )
    assert scene.paths[-1] == "/continue_generation"


@pytest.mark.parametrize(
    ("own", "kind"),
    [
        (reply(503, {"error": {"code": "shutting_down", "message": "m"}}), ShuttingDown),
        (reply(503, {"message": "m"}, x_hotswap_error="WeightsNotWhole"), WeightsNotWhole),
        (reply(503, {"object": "error", "message": "m"}), RequestRefused),
        (Reply(status=500, body=b"boom"), RequestRefused),
        (Reply(status=501), RequestRefused),
    ],
)
def test_what_the_server_says_itself_is_not_repeated(own: Reply, kind: type[Exception]) -> None:
    scene = Scene({"/continue_generation": own})
    raised(kind, lambda: run(HOTSWAP["resume"][0], scene))
    assert len(scene.asked) == 1


def test_a_server_of_sglang_that_refuses_in_its_own_words() -> None:
    no = reply(503, {"success": False, "message": "Failed to get weights iterator: x."})
    scene = Scene({UPDATE: no}, kind=ServerKind.SGLANG)
    raised(UpdateRejected, lambda: run(HOTSWAP["update"][0], scene))


def test_a_server_that_is_not_ready_says_so_through_a_proxy_too() -> None:
    raised(NotReady, lambda: run(HOTSWAP["wait_ready"][0], Scene({"/ready": AWAY[1]})))
    raised(NoAnswer, lambda: run(HOTSWAP["wait_ready"][0], Scene({"/ready": AWAY[0]})))


def test_events_are_asked_for_again() -> None:
    script = Script(*AWAY[:3], Reply(status=200), b"event: shutdown\ndata: {}\n\n")
    reader = Feed(script.session, after=None, reconnect_s=5.0)
    event = script.run(reader.next())
    assert event is not None
    assert event.name == "shutdown"
    script = Script(*[AWAY[0]] * 13)
    reader = Feed(script.session, after=None, reconnect_s=5.0)
    assert "502" in str(raised(NoAnswer, lambda: script.run(reader.next())))
