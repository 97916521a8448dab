"""A refusal after an attempt whose reply was lost, and one that no server signed, are judged by
what the server shows: no error says of the weights what is not so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import httpx
import pytest
import torch

from hotswap.client import AsyncClient, Client, Transport
from hotswap.client.committing import CommitRequest, commit
from hotswap.client.effects import NoReply, Reply, Steps
from hotswap.client.errors import (
    NoAnswer,
    OutcomeUnknown,
    RequestRefused,
    WeightsAfter,
    weights_after,
)
from hotswap.client.pushing import PushPayload, PushRequest, push
from hotswap.client.session import ServerKind
from hotswap.client.shown import UpdateResult
from hotswap.client.updating import UpdateRequest, update
from hotswap.errors import (
    HotswapError,
    IllegalCommand,
    InFlight,
    ShuttingDown,
    UpdateFailed,
    UpdateRejected,
    UpdateRolledBack,
)
from tests.unit.client.script import LOST, NEVER_SENT, raised, reply, status
from tests.unit.client.world import World

PAYLOAD = PushPayload({"a": torch.ones(2)}, transport=Transport.BODY, url="http://server")
BUSY = reply(409, {"error": {"code": "busy", "message": "another", "retryable": True}})
PAGE = b"<html><title>Sorry</title></html>"


Call = Callable[[World], Steps[UpdateResult]]


def _update(world: World) -> Steps[UpdateResult]:
    wanted = UpdateRequest(source="b", version="7")
    return update(world.session, wanted, budget=world.budget())


def _push(world: World, **labels: Any) -> Steps[UpdateResult]:
    wanted = PushRequest(**(labels or {"version": "7"}))
    return push(world.session, PAYLOAD, wanted, budget=world.budget())


def _commit(world: World, **fields: Any) -> Steps[UpdateResult]:
    return commit(world.session, CommitRequest(**fields), budget=world.budget())


CALLS: Mapping[str, Call] = {
    "update": _update,
    "push": _push,
    "push of a part": lambda world: _push(world, version="7", scope="partial"),
    "commit": _commit,
    "commit of 7": lambda world: _commit(world, version=7),
}


def signed(code: int, name: str) -> Reply:
    return reply(
        code, {"error": {"code": "validation_error", "message": "m"}}, x_hotswap_error=name
    )


SIGNED: Mapping[str, tuple[Reply, type[HotswapError]]] = {
    "401": (signed(401, "Unauthorized"), RequestRefused),
    "rejected": (signed(400, "UpdateRejected"), UpdateRejected),
    "illegal": (signed(409, "IllegalCommand"), IllegalCommand),
    "in flight": (signed(409, "InFlight"), InFlight),
    "unseen": (signed(400, "SegmentNotSeen"), UpdateRejected),
    "ending": (signed(503, "ShuttingDown"), ShuttingDown),
    "put back": (signed(500, "UpdateRolledBack"), UpdateRolledBack),
}
UNSIGNED: Mapping[str, tuple[Reply, type[HotswapError]]] = {
    "401": (Reply(status=401), RequestRefused),
    "302": (Reply(status=302, headers={"location": "http://elsewhere/"}), RequestRefused),
    "404 page": (Reply(status=404, body=PAGE), RequestRefused),
    "413 page": (Reply(status=413, body=PAGE), UpdateRejected),
    "400": (Reply(status=400, body=b"bad"), UpdateRejected),
    "409": (Reply(status=409, body=b"x"), UpdateRejected),
    "422": (reply(422, {"detail": "x"}), UpdateRejected),
}

each_call = pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
each_refusal = pytest.mark.parametrize(
    ("refusal", "kind"),
    [*SIGNED.values(), *UNSIGNED.values()],
    ids=[*SIGNED, *(f"unsigned {name}" for name in UNSIGNED)],
)
each_unsigned = pytest.mark.parametrize(("refusal", "kind"), UNSIGNED.values(), ids=list(UNSIGNED))


# --- an attempt before it had no reply


@each_call
@each_refusal
@pytest.mark.parametrize("done_at", [1, 2])
def test_what_an_earlier_attempt_did_is_a_success(
    call: Call, refusal: Reply, kind: type[HotswapError], done_at: int
) -> None:
    world = World(LOST, refusal, done_at=done_at)
    result = world.run(call(world), more=True)
    assert (result.confirmed_by, result.weight_epoch, result.weight_version) == ("state", 4, "7")


@each_call
@each_refusal
def test_what_no_attempt_did_is_the_refusal(
    call: Call, refusal: Reply, kind: type[HotswapError]
) -> None:
    world = World(LOST, refusal)
    error = raised(kind, lambda: world.run(call(world)))
    put_back = kind is UpdateRolledBack
    assert weights_after(error) is (WeightsAfter.PUT_BACK if put_back else WeightsAfter.UNTOUCHED)


@each_call
@each_refusal
@pytest.mark.parametrize("done_at", [0, 2])
def test_who_cannot_look_does_not_know(
    call: Call, refusal: Reply, kind: type[HotswapError], done_at: int
) -> None:
    world = World(LOST, refusal, done_at=done_at, seen=2)
    error = raised(OutcomeUnknown, lambda: world.run(call(world)))
    assert f"the server answered {refusal.status}" in str(error)
    assert f"it was sent before that and may have been done then ({LOST})" in str(error)
    assert "no key of the way" in str(error)
    assert isinstance(error.__cause__, kind)


@each_call
@each_refusal
def test_what_somebody_else_did_since_is_not_known_to_be_all(
    call: Call, refusal: Reply, kind: type[HotswapError]
) -> None:
    world = World(LOST, refusal, done_at=2, becomes={"epoch": 5, "version": "8"})
    error = raised(OutcomeUnknown, lambda: world.run(call(world)))
    assert "may have been done then" in str(error)


@each_call
@each_refusal
def test_weights_that_are_torn_since_are_told_of(
    call: Call, refusal: Reply, kind: type[HotswapError]
) -> None:
    world = World(LOST, refusal, done_at=2, becomes={"weights": "torn", "epoch": 3})
    error = raised(UpdateFailed, lambda: world.run(call(world)))
    assert "send a full update" in str(error)


@each_call
def test_the_doubt_outlives_what_was_never_begun(call: Call) -> None:
    world = World(LOST, BUSY, SIGNED["401"][0], done_at=3)
    assert world.run(call(world)).confirmed_by == "state"
    world = World(LOST, NEVER_SENT, SIGNED["401"][0], seen=3)
    raised(OutcomeUnknown, lambda: world.run(call(world)))


@pytest.mark.parametrize("last", [BUSY, NEVER_SENT], ids=["busy", "unsent"])
def test_an_update_that_is_given_up_is_looked_for_once_more(last: Reply | NoReply) -> None:
    world = World(LOST, last, last, done_at=3)
    assert world.run(_update(world)).confirmed_by == "state"
    world = World(LOST, last, last)
    raised(NoAnswer, lambda: world.run(_update(world)))
    world = World(LOST, last, last, seen=3)
    raised(OutcomeUnknown, lambda: world.run(_update(world)))


def test_a_push_whose_replies_stay_lost_is_looked_for() -> None:
    world = World(*[LOST] * 3, done_at=2)
    assert world.run(_push(world)).confirmed_by == "state"
    # Its bytes may lie on the way yet.
    world = World(*[LOST] * 3)
    raised(OutcomeUnknown, lambda: world.run(_push(world)))


@pytest.mark.parametrize("labels", [{"token_step": 9}, {"scope": "full"}, {"update_id": "s"}])
def test_a_push_without_a_name_of_its_own_is_not_known_by_the_count_alone(
    labels: dict[str, Any],
) -> None:
    world = World(LOST, SIGNED["401"][0], done_at=1)
    raised(OutcomeUnknown, lambda: world.run(_push(world, **labels)))
    world = World(LOST, SIGNED["401"][0])
    raised(RequestRefused, lambda: world.run(_push(world, **labels)))


def test_memory_that_is_given_up_and_a_reply_that_was_lost_before() -> None:
    unseen, refusal = SIGNED["unseen"][0], SIGNED["401"][0]
    for answers, done_at in (((LOST, unseen, refusal), 1), ((unseen, LOST, refusal), 2)):
        world = World(*answers, done_at=done_at)
        tensors = {"a": torch.ones(2)}
        with PushPayload(tensors, transport=Transport.AUTO, url="http://localhost") as payload:
            wanted = PushRequest(version="7")
            steps = push(world.session, payload, wanted, budget=world.budget())
            assert world.run(steps).confirmed_by == "state"
            assert payload.shared is None


def test_a_commit_that_may_wait_on_the_server_may_be_done_yet() -> None:
    world = World(LOST, SIGNED["rejected"][0])
    raised(OutcomeUnknown, lambda: world.run(_commit(world, version=7, wait_s=5)))
    world = World(SIGNED["rejected"][0])
    raised(UpdateRejected, lambda: world.run(_commit(world, version=7, wait_s=5)))
    world = World(LOST, SIGNED["rejected"][0], done_at=1)
    raised(OutcomeUnknown, lambda: world.run(_commit(world, version=7, label="other")))


def test_a_push_by_who_may_not_look_is_sent_and_not_known() -> None:
    world = World(reply(200, {"success": True}), seen=0)
    assert world.run(_push(world)).confirmed_by == "reply"
    world = World(LOST, SIGNED["401"][0], seen=0)
    raised(OutcomeUnknown, lambda: world.run(_push(world)))


# --- nobody signed it


@each_call
@each_unsigned
def test_a_refusal_that_no_server_signed_is_looked_into(
    call: Call, refusal: Reply, kind: type[HotswapError]
) -> None:
    world = World(refusal, done_at=1)
    assert world.run(call(world)).confirmed_by == "state"
    world = World(refusal)
    error = raised(kind, lambda: world.run(call(world)))
    assert weights_after(error) is WeightsAfter.UNTOUCHED
    world = World(refusal, seen=1)
    error = raised(OutcomeUnknown, lambda: world.run(call(world)))
    assert f"the server answered {refusal.status}" in str(error)
    assert "sent before" not in str(error)
    world = World(refusal, done_at=1, becomes={"epoch": 5, "version": "8"})
    raised(OutcomeUnknown, lambda: world.run(call(world)))


@each_call
@pytest.mark.parametrize("unsigned", [Reply(status=500), Reply(status=429), Reply(status=200)])
def test_a_reply_that_says_nothing_is_looked_into_by_all(call: Call, unsigned: Reply) -> None:
    world = World(unsigned, done_at=1)
    assert world.run(call(world)).confirmed_by == "state"
    world = World(unsigned)
    raised(OutcomeUnknown, lambda: world.run(call(world)))


@each_call
@pytest.mark.parametrize(("refusal", "kind"), SIGNED.values(), ids=list(SIGNED))
def test_the_servers_own_word_needs_no_look(
    call: Call, refusal: Reply, kind: type[HotswapError]
) -> None:
    world = World(refusal)
    raised(kind, lambda: world.run(call(world)))
    assert world.paths == [world.paths[0]]
    assert world.attempts == 1


# --- SGLang's own servers, which count nothing

SGLANG_WORDS: Mapping[str, tuple[Reply, type[HotswapError]]] = {
    "checked": (reply(400, {"object": "error", "message": "bad"}), UpdateRejected),
    "own words": (
        reply(400, {"success": False, "message": "Failed to get weights iterator: x"}),
        UpdateRejected,
    ),
}
SGLANG_PLAIN: Mapping[str, tuple[Reply, type[HotswapError]]] = {
    "key": (reply(401, {"error": "Unauthorized"}), RequestRefused),
    "route": (reply(404, {"detail": "Not Found"}), RequestRefused),
    **UNSIGNED,
}


def sglang(*answers: Reply | NoReply, **options: Any) -> World:
    return World(*answers, kind=ServerKind.SGLANG, **options)


def cases(*tables: Mapping[str, tuple[Reply, type[HotswapError]]]) -> Sequence[Any]:
    return [pytest.param(*case, id=name) for table in tables for name, case in table.items()]


@pytest.mark.parametrize(("refusal", "kind"), cases(SGLANG_WORDS, SGLANG_PLAIN))
def test_sglang_after_a_lost_reply(refusal: Reply, kind: type[HotswapError]) -> None:
    world = sglang(LOST, refusal, done_at=2)
    assert world.run(_update(world)).confirmed_by == "state"
    for options in ({}, {"seen": 2}, {"done_at": 2, "becomes": {"version": "8"}}):
        world = sglang(LOST, refusal, **options)
        error = raised(OutcomeUnknown, partial(world.run, _update(world)))
        assert f"the server answered {refusal.status}" in str(error)
        assert f"may have been done then ({LOST})" in str(error)
        assert isinstance(error.__cause__, kind)


@pytest.mark.parametrize(("refusal", "kind"), cases(SGLANG_PLAIN))
def test_sglangs_plain_refusals_are_looked_into(refusal: Reply, kind: type[HotswapError]) -> None:
    world = sglang(refusal)
    raised(kind, lambda: world.run(_update(world)))
    world = sglang(refusal, done_at=1)
    assert world.run(_update(world)).confirmed_by == "state"
    world = sglang(refusal, seen=1)
    raised(OutcomeUnknown, lambda: world.run(_update(world)))
    # The same directory under the same name once more: it would look like this, too.
    world = sglang(refusal, version="7")
    wanted = UpdateRequest(source="a", version="7")
    steps = update(world.session, wanted, budget=world.budget())
    raised(OutcomeUnknown, lambda: world.run(steps))


@pytest.mark.parametrize(("refusal", "kind"), cases(SGLANG_WORDS))
def test_sglangs_own_words_need_no_look(refusal: Reply, kind: type[HotswapError]) -> None:
    world = sglang(refusal)
    raised(kind, lambda: world.run(_update(world)))
    assert world.paths[-1] == "/update_weights_from_disk"


# --- both clients


class Way:
    """Passes a push or an update on to a server, and answers in its own words."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.epoch, self.version = 3, "6"

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            shown = status(epoch=self.epoch, version=self.version, model_path="b")
            return httpx.Response(200, content=shown.body)
        self.epoch, self.version = 4, "7"
        code = self.codes.pop(0)
        if code == 0:
            raise httpx.ReadError("cut", request=request)
        return httpx.Response(code, content=PAGE)


@pytest.mark.parametrize("codes", [(404,), (0, 401)])
@pytest.mark.parametrize("name", ["update", "push"])
async def test_both_clients_look(name: str, codes: tuple[int, ...]) -> None:
    asked: dict[str, Any] = {"version": "7"}
    what: Any = "b" if name == "update" else {"a": torch.ones(2)}
    transport = httpx.MockTransport(Way(*codes))
    with (
        httpx.Client(transport=transport) as http,
        Client("http://server", server="hotswap", http=http) as client,
    ):
        assert getattr(client, name)(what, **asked).confirmed_by == "state"
    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(Way(*codes))) as async_http,
        AsyncClient("http://server", server="hotswap", http=async_http) as other,
    ):
        assert (await getattr(other, name)(what, **asked)).confirmed_by == "state"
