"""Which requests a command sends, how often, and how long it takes at most."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from hotswap.client import commands
from hotswap.client.effects import NoReply, Steps
from hotswap.client.errors import NoAnswer, NotReady, RequestRefused, StillPaused
from hotswap.client.session import Fence, ServerKind, Session
from hotswap.errors import HotswapError, IllegalCommand, InFlight, UpdateRejected
from tests.unit.client.script import LOST, NEVER_SENT, Answer, Script, raised, reply, status

BUSY = reply(409, {"error": {"code": "busy", "message": "another", "retryable": True}})
REFUSED = reply(409, {"error": {"code": "conflict", "message": "no", "retryable": False}})
CUT = NoReply("RemoteProtocolError: cut", sent=True)
FULL = reply(400, {"message": "2 requests hold KV"})


def test_a_flush_is_asked_for_every_second_sixty_times() -> None:
    script = Script(*[FULL] * 59, reply(200, {"entries_cleared": 4}))
    steps = commands.flush(script.session, times=60, every_s=1.0, budget=script.budget())
    assert script.run(steps) == 4
    assert script.slept == [1.0] * 59

    script = Script(*[FULL] * 60)
    steps = commands.flush(script.session, times=60, every_s=1.0, budget=script.budget())
    error = raised(InFlight, lambda: script.run(steps))
    assert "refused 60 times: 2 requests hold KV" in str(error)


def test_a_flush_ends_with_its_time_and_at_any_other_error() -> None:
    script = Script(*[FULL] * 6)
    budget = script.budget(2.0)
    steps = commands.flush(script.session, times=60, every_s=1.0, budget=budget)
    assert "refused 6 times" in str(raised(InFlight, lambda: script.run(steps)))

    script = Script(reply(401, {"error": "Unauthorized"}))
    steps = commands.flush(script.session, times=60, every_s=1.0, budget=script.budget())
    assert isinstance(raised(RequestRefused, lambda: script.run(steps)), RequestRefused)


def test_sglangs_flush_tells_no_number() -> None:
    script = Script(reply(200), kind=ServerKind.SGLANG)
    steps = commands.flush(script.session, times=1, every_s=1.0, budget=script.budget())
    assert script.run(steps) is None


@pytest.mark.parametrize("first", [NEVER_SENT, LOST, BUSY], ids=["unsent", "lost", "busy"])
def test_what_twice_is_the_same_as_once_is_sent_again(first: Answer) -> None:
    makers: list[Callable[[Script], Steps[object]]] = [
        lambda script: commands.pause(script.session, mode="abort", budget=script.budget()),
        lambda script: commands.resume(script.session, budget=script.budget()),
        lambda script: commands.state(script.session, budget=script.budget()),
    ]
    for make in makers:
        script = Script(first, status())
        script.run(make(script))
        assert len(script.asked) == 2
        assert script.paths[0] == script.paths[1]


@pytest.mark.parametrize("no", [{"success": False, "message": "not now"}, {"error": "not now"}])
def test_a_success_that_says_it_is_none_is_an_error(no: dict[str, object]) -> None:
    makers: list[Callable[[Script], Steps[object]]] = [
        lambda script: commands.pause(script.session, mode="abort", budget=script.budget()),
        lambda script: commands.resume(script.session, budget=script.budget()),
        lambda script: commands.flush(script.session, times=1, every_s=1.0, budget=script.budget()),
    ]
    for make in makers:
        script = Script(reply(200, no))
        error = raised(RequestRefused, partial(script.run, make(script)))
        assert "the server answered 200: not now" in str(error)


def test_a_password_in_the_address_is_for_the_server_alone() -> None:
    session = Session("http://user:hunter2@server:1")
    assert session.address == "http://user:hunter2@server:1"
    assert "hunter2" not in session.url + repr(session)
    script = Script(reply(401, {}))
    script.session = session
    error = raised(
        RequestRefused, lambda: script.run(commands.state(session, budget=script.budget()))
    )
    assert "hunter2" not in str(error)


def test_no_retry_begins_after_the_time_is_up() -> None:
    script = Script(*[NEVER_SENT] * 7)
    steps = commands.resume(script.session, budget=script.budget(2.0))
    error = raised(NoAnswer, lambda: script.run(steps))
    assert "not answered within 2 s" in str(error)
    assert script.slept == [0.5, 0.5, 0.5, 0.25, 0.125, 0.0625]
    assert script.answers == []


@pytest.mark.parametrize("within_s", [0.3, 0.5, 1.0, 1.5, 1.7, 30.0])
def test_nobody_gives_up_before_the_time_is_up(within_s: float) -> None:
    calls: list[tuple[Callable[[Script], Steps[object]], Answer]] = [
        (lambda s: commands.state(s.session, budget=s.budget(within_s)), NEVER_SENT),
        (lambda s: commands.pause(s.session, mode=None, budget=s.budget(within_s)), BUSY),
        (lambda s: commands.wait_ready(s.session, budget=s.budget(within_s)), reply(503)),
        (
            lambda s: commands.flush(s.session, times=99, every_s=1.0, budget=s.budget(within_s)),
            FULL,
        ),
    ]
    for call, answer in calls:
        script = Script(*[answer] * 99)
        with pytest.raises(HotswapError):
            script.run(call(script), more=True)
        assert within_s - 0.1 <= sum(script.slept) < within_s


def test_no_time_at_all_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="within_s is 0"):
        Script().budget(0)


def test_a_refused_command_is_not_repeated() -> None:
    script = Script(REFUSED)
    steps = commands.pause(script.session, mode=None, budget=script.budget())
    assert isinstance(raised(IllegalCommand, lambda: script.run(steps)), IllegalCommand)
    assert script.asked == [("/pause_generation", {})]


def test_ready_is_waited_for_and_reasons_are_told() -> None:
    waits = reply(503, {"reasons": ["paused"]})
    script = Script(waits, NEVER_SENT, reply(200))
    script.run(commands.wait_ready(script.session, budget=script.budget()))
    assert script.paths == ["/ready"] * 3

    script = Script(*[waits] * 5)
    steps = commands.wait_ready(script.session, budget=script.budget(1.0))
    assert "paused" in str(raised(NotReady, lambda: script.run(steps)))

    script = Script(reply(404))
    steps = commands.wait_ready(script.session, budget=script.budget())
    assert "404" in str(raised(RequestRefused, lambda: script.run(steps)))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (reply(404, {"detail": "Not Found"}), ServerKind.SGLANG),
        (reply(200, {"status": "ok"}), ServerKind.SGLANG),
        (status(), ServerKind.HOTSWAP),
    ],
)
def test_the_server_says_whose_it_is_once(answer: Answer, kind: ServerKind) -> None:
    script = Script(answer, kind=None)
    assert script.run(script.session.kind_of_server(script.budget())) is kind
    assert script.run(script.session.kind_of_server(script.budget())) is kind
    assert script.paths == ["/status"]


def test_a_server_that_hides_whose_it_is() -> None:
    script = Script(reply(401, {"error": "Unauthorized"}), kind=None)
    steps = script.session.kind_of_server(script.budget())
    assert "Unauthorized" in str(raised(RequestRefused, lambda: script.run(steps)))


def test_the_state_of_an_sglang_server_is_the_sum_of_its_ranks() -> None:
    script = Script(
        reply(200, {"model_path": "/m", "weight_version": "7"}),
        reply(200, {"loads": [{"num_running_reqs": 2}, {"num_running_reqs": 1}]}),
        reply(404),
        reply(200),
        kind=ServerKind.SGLANG,
    )
    seen = script.run(commands.state(script.session, budget=script.budget()))
    assert (seen.model_path, seen.weight_version, seen.running, seen.waiting) == ("/m", "7", 3, 0)
    assert seen.ready
    assert seen.state is None
    assert script.paths == ["/model_info", "/v1/loads?include=core", "/ping", "/health"]


def test_one_key_a_request_and_the_right_one() -> None:
    both = Session("http://x", api_key="a", admin_key="b")
    assert both.key_headers(admin=True) == {"authorization": "Bearer b"}
    assert both.key_headers(admin=False) == {"authorization": "Bearer a"}
    only = Session("http://x", api_key="a")
    assert only.key_headers(admin=True) == {"authorization": "Bearer a"}
    assert Session("http://x").key_headers(admin=True) == {}
    assert "Bearer" not in repr(both)
    with pytest.raises(ValueError, match="wanted one like http://"):
        Session("localhost:30000")


# --- fences


def enter(script: Script, mode: str | None = "retract", within_s: float = 5.0) -> Steps[None]:
    return commands.enter_fence(script.session, Fence(mode=mode), budget=script.budget(within_s))


def leave(
    script: Script, error: BaseException | None = None, *, entering: bool = False, at: int = -1
) -> Steps[None]:
    fence = script.session.fences[at]
    return commands.leave_fence(
        script.session, fence, error=error, entering=entering, budget=script.budget(2.0)
    )


def test_a_fence_continues_what_it_paused() -> None:
    script = Script(reply(200), reply(200))
    script.answers, later = script.answers[:1], script.answers[1:]
    script.run(enter(script))
    script.answers = later
    script.run(leave(script, UpdateRejected("wrong")))
    assert script.paths == ["/pause_generation", "/continue_generation"]
    assert script.session.fences == []


def test_only_the_outermost_fence_continues() -> None:
    script = Script(reply(200))
    script.run(enter(script))
    script.answers = [reply(200)]
    script.run(enter(script, "abort"))
    script.run(leave(script))
    assert "/continue_generation" not in script.paths
    script.answers = [reply(200)]
    script.run(leave(script))
    assert script.paths[-1] == "/continue_generation"


@pytest.mark.parametrize("error", [NoAnswer("no"), KeyboardInterrupt(), TimeoutError()])
def test_a_pause_that_may_be_in_effect_is_continued(error: BaseException) -> None:
    script = Script(LOST)
    raised(NoAnswer, lambda: script.run(enter(script, within_s=0.4)))
    script.answers = [reply(200)]
    script.run(leave(script, error, entering=True))
    assert script.paths == ["/pause_generation", "/continue_generation"]


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ([CUT, REFUSED], IllegalCommand),
        ([CUT, reply(403)], RequestRefused),
        ([reply(400)], RequestRefused),
        ([reply(401)], RequestRefused),
    ],
)
def test_a_pause_whose_refusal_is_in_doubt_is_continued(
    answers: list[Answer], kind: type[HotswapError]
) -> None:
    script = Script(*answers)
    error = raised(kind, lambda: script.run(enter(script)))
    script.answers = [reply(200)]
    script.run(leave(script, error, entering=True))
    assert script.paths[-1] == "/continue_generation"
    assert script.session.fences == []


def test_a_pause_that_was_refused_is_not() -> None:
    script = Script(REFUSED)
    error = raised(IllegalCommand, lambda: script.run(enter(script)))
    script.run(leave(script, error, entering=True))
    assert script.paths == ["/pause_generation"]
    assert script.session.fences == []


def test_a_server_that_stays_paused_is_told_of() -> None:
    script = Script(reply(200))
    script.run(enter(script))
    script.answers = [NEVER_SENT] * 7
    told = str(raised(StillPaused, lambda: script.run(leave(script))))
    assert "http://server is still paused" in told

    script = Script(reply(200))
    script.run(enter(script))
    script.answers = [REFUSED]
    error = UpdateRejected("wrong")
    script.run(leave(script, error))
    assert "http://server is still paused" in error.__notes__[0]
