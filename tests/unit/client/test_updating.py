"""An update is sent again when that is safe, and never reported as what it was not."""

from __future__ import annotations

import pytest

from hotswap.client.effects import NoReply, Reply, Steps
from hotswap.client.errors import NoAnswer, OutcomeUnknown
from hotswap.client.session import Fence, ServerKind
from hotswap.client.shown import UpdateResult
from hotswap.client.updating import UpdateRequest, default_mode, update
from hotswap.errors import InFlight, UpdateFailed, UpdateRejected, UpdateRolledBack
from tests.unit.client.script import LOST, NEVER_SENT, Answer, Script, raised, reply, status

DONE = reply(200, {"success": True, "weight_version": "7", "weight_epoch": 1, "tensors_loaded": 3})
BUSY = reply(409, {"error": {"code": "busy", "message": "another", "retryable": True}})
PATH = "/update_weights_from_disk"
WANTED = UpdateRequest(source="b", version="7")
AFTER = status(epoch=1, version="7", model_path="b")
RUNS = status(updates=[{"source": "b", "version": "7", "phase": "staging", "since_ms": 1.0}])


def begun(
    script: Script, wanted: UpdateRequest = WANTED, within_s: float = 600.0
) -> Steps[UpdateResult]:
    return update(script.session, wanted, budget=script.budget(within_s))


def test_one_request_that_parks_what_runs() -> None:
    script = Script(status(), DONE)
    result = script.run(begun(script, UpdateRequest(source="b", version="7", token_step=3)))
    assert result.weight_version == "7"
    assert (result.tensors, result.confirmed_by) == (3, "reply")
    assert script.asked[1] == (
        PATH,
        {
            "model_path": "b",
            "weight_version": "7",
            "token_step": 3,
            "flush_cache": True,
            "pause_mode": "retract",
        },
    )


def test_the_callers_mode_wins() -> None:
    script = Script(status(), DONE)
    script.run(begun(script, UpdateRequest(source="b", pause_mode="in_place", flush_cache=False)))
    body = script.asked[1][1]
    assert body == {"model_path": "b", "flush_cache": False, "pause_mode": "in_place"}


def test_inside_a_fence_it_flushes_first_and_pauses_nothing() -> None:
    script = Script(status(), reply(400), reply(400), reply(200), DONE)
    script.session.fences.append(Fence(mode="retract"))
    script.run(begun(script))
    assert script.paths == ["/status", *["/flush_cache"] * 3, PATH]
    assert script.slept == [1.0, 1.0]
    body = script.asked[-1][1]
    assert body is not None
    assert "pause_mode" not in body


def test_inside_a_fence_a_flush_that_never_comes_is_an_error_and_nothing_is_sent() -> None:
    script = Script(status(), *[reply(400)] * 60)
    script.session.fences.append(Fence(mode="abort"))
    error = raised(InFlight, lambda: script.run(begun(script)))
    assert "refused 60 times" in str(error)
    assert PATH not in script.paths


@pytest.mark.parametrize(
    ("kind", "flushes"), [(ServerKind.HOTSWAP, True), (ServerKind.SGLANG, False)]
)
def test_frozen_requests_keep_what_they_hold(kind: ServerKind, flushes: bool) -> None:
    looked = [status()] if kind is ServerKind.HOTSWAP else [reply(200)] * 3
    script = Script(*looked, DONE, kind=kind)
    script.session.fences.append(Fence(mode="in_place"))
    script.run(begun(script))
    assert "/flush_cache" not in script.paths
    body = script.asked[-1][1]
    assert body is not None
    assert body["flush_cache"] is flushes


@pytest.mark.parametrize("first", [NEVER_SENT, BUSY], ids=["unsent", "busy"])
def test_what_was_not_begun_is_sent_again(first: Reply | NoReply) -> None:
    script = Script(status(), first, DONE)
    assert script.run(begun(script)).confirmed_by == "reply"
    assert script.paths.count(PATH) == 2


def test_a_lost_reply_of_an_update_that_was_done() -> None:
    script = Script(status(), LOST, RUNS, RUNS, AFTER)
    result = script.run(begun(script))
    assert (result.confirmed_by, result.weight_epoch) == ("state", 1)
    assert script.paths.count(PATH) == 1


def test_a_lost_reply_of_an_update_that_was_not_done() -> None:
    script = Script(status(), LOST, status(), DONE)
    assert script.run(begun(script)).confirmed_by == "reply"
    assert script.paths.count(PATH) == 2


@pytest.mark.parametrize(
    "now",
    [
        status(epoch=1, version="8", model_path="b"),
        status(epoch=1, version="7", model_path="c"),
        status(epoch=0, version="7", model_path="b"),
    ],
    ids=["other label", "other source", "no commit"],
)
def test_what_somebody_else_did_is_not_taken_for_ours(now: Reply) -> None:
    script = Script(status(), LOST, now, DONE)
    assert script.run(begun(script)).confirmed_by == "reply"


def test_labels_that_are_numbers_are_equal_as_numbers() -> None:
    script = Script(status(), LOST, status(epoch=1, version="000007", model_path="b"))
    assert script.run(begun(script)).confirmed_by == "state"


def test_it_is_sent_three_times_at_most() -> None:
    lost: list[Answer] = [LOST, status()]
    script = Script(status(), *lost * 3)
    error = raised(NoAnswer, lambda: script.run(begun(script)))
    assert "sent 3 times" in str(error)
    assert script.paths.count(PATH) == 3


def test_the_last_refusal_is_told_with_its_advice() -> None:
    held = "the update 's1' is open; retry when it is committed or aborted"
    envelope = {"error": {"code": "busy", "message": held, "retryable": True}}
    script = Script(status(), BUSY, BUSY, reply(409, envelope))
    error = raised(NoAnswer, lambda: script.run(begun(script)))
    assert str(error) == (
        "update of http://server from b: sent 3 times within 600 s, and not done: the server "
        f"answered 409: {held}; look at the state of the server, and send the update again"
    )
    script = Script(status(), *[NEVER_SENT] * 3)
    error = raised(NoAnswer, lambda: script.run(begun(script)))
    assert f"and not done: {NEVER_SENT}; look at" in str(error)


def test_torn_weights_are_told_of() -> None:
    script = Script(status(), LOST, status(weights="torn"))
    assert "torn" in str(raised(UpdateFailed, lambda: script.run(begun(script))))


def test_nobody_can_say_what_became_of_it() -> None:
    script = Script(status(), LOST, *[NEVER_SENT] * 7)
    error = raised(OutcomeUnknown, lambda: script.run(begun(script, within_s=12.0)))
    assert "wanted to know whether it changed the weights" in str(error)


def test_an_update_that_outlives_the_callers_time() -> None:
    script = Script(status(), LOST, *[RUNS] * 7)
    error = raised(OutcomeUnknown, lambda: script.run(begun(script, within_s=12.0)))
    assert "it still runs" in str(error)


@pytest.mark.parametrize(
    ("code", "kind"),
    [("update_failed", UpdateFailed), ("update_rolled_back", UpdateRolledBack)],
)
def test_what_the_server_says_is_what_is_raised(code: str, kind: type[Exception]) -> None:
    script = Script(status(), reply(500, {"error": {"code": code, "message": "no"}}))
    raised(kind, lambda: script.run(begun(script)))
    assert script.paths.count(PATH) == 1


def test_a_fault_of_the_server_is_looked_into() -> None:
    fault = reply(500, {"error": {"code": "internal_error", "message": "no"}})
    script = Script(status(), fault, status())
    raised(UpdateRolledBack, lambda: script.run(begun(script)))
    script = Script(status(), fault, AFTER)
    assert script.run(begun(script)).confirmed_by == "state"


# --- SGLang's own servers


def looked(version: str) -> list[Reply]:
    return [reply(200, {"weight_version": version, "model_path": "a"}), reply(200), reply(200)]


def test_sglang_confirms_by_a_new_label_only() -> None:
    script = Script(*looked("6"), LOST, *looked("7"), kind=ServerKind.SGLANG)
    assert script.run(begun(script)).confirmed_by == "state"
    script = Script(*looked("7"), LOST, *looked("7"), DONE, kind=ServerKind.SGLANG)
    assert script.run(begun(script)).confirmed_by == "reply"


def test_sglang_says_200_and_means_no() -> None:
    no = reply(200, {"success": False, "message": "Failed to get weights iterator: x."})
    script = Script(*looked("6"), no, kind=ServerKind.SGLANG)
    raised(UpdateRejected, lambda: script.run(begun(script)))


def test_sglang_says_what_nobody_knows() -> None:
    no = reply(400, {"success": False, "message": "odd"})
    script = Script(*looked("6"), no, *looked("6"), kind=ServerKind.SGLANG)
    raised(OutcomeUnknown, lambda: script.run(begun(script)))


def test_what_a_sparse_commit_moved_is_told() -> None:
    done = reply(200, {"success": True, "mode": "sparse", "elements_moved": 7})
    script = Script(*looked("6"), done, kind=ServerKind.SGLANG)
    result = script.run(begun(script))
    assert (result.mode, result.elements_moved) == ("sparse", 7)


def test_sglang_counts_for_each_rank() -> None:
    done = reply(200, {"success": True, "num_paused_requests": [1, 2]})
    script = Script(*looked("6"), done, kind=ServerKind.SGLANG)
    result = script.run(begun(script))
    assert (result.num_paused_requests, result.weight_version) == (3, "7")
    assert default_mode(ServerKind.SGLANG) == "abort"
