"""``/update_weights_from_tensor`` and the sessions around it, in front of a controller."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from hotswap.errors import InFlight, UpdateRejected
from hotswap.testing.scripted_engine import ScriptedEngine
from hotswap.types import LoadMode, PauseMode, Placement, Scope
from tests.unit.http.push_sender import Sender, base64_of

PATH = "/update_weights_from_tensor"
EMPTY = "gARdlC4="
NO_TENSOR = "gARLAS4="  # the number 1


@pytest.fixture
def sender() -> Sender:
    made = Sender()
    assert made.users == 2
    return made


@pytest.mark.parametrize(
    ("dialect", "message"),
    [
        ("gr", "Succeeded to update model weights from tensor."),
        ("sglang", "Success Weight version updated to 7."),
    ],
)
async def test_every_field_reaches_the_update(
    serve: Any, sender: Sender, dialect: str, message: str
) -> None:
    serving = serve(dialect=dialect, load_mode="direct")
    body = sender.body(
        weight_version=7,
        token_step=3,
        flush_cache=False,
        abort_all_requests=True,
        scope="full",
        selector="target",
        disable_draft_model=True,
        torch_empty_cache=True,
    )
    status, reply = await serving.json("POST", PATH, json=body)
    assert (status, reply["success"], reply["message"]) == (200, True, message)
    assert (reply["tensors_loaded"], reply["weight_version"], reply["token_step"]) == (310, "7", 3)
    assert (reply["staged"], reply["update_id"], reply["coverage"]) == (False, None, None)
    (update,) = serving.commands.received
    assert (update.strategy, update.source) == ("push", "a push of 1 tensors")
    assert (update.version, update.token_step, update.flush_cache) == ("7", 3, False)
    assert (update.pause_mode, update.mode) == (PauseMode.ABORT, LoadMode.DIRECT)
    assert (update.scope, update.chunk) == (Scope.FULL, False)
    assert sender.users == 1, "the fake has not opened it, and the reference went back"


async def test_an_empty_bucket_is_counted_and_changes_nothing(serving: Any) -> None:
    body = {"serialized_named_tensors": [EMPTY], "weight_version": "9"}
    status, reply = await serving.json("POST", PATH, json=body)
    assert (status, reply["tensors_loaded"], reply["weight_version"]) == (200, 0, None)
    assert serving.commands.calls == []
    assert serving.commands.counters.updates == {"push/empty": 1}
    # All of the weights are not nothing.
    await serving.json("POST", PATH, json=body | {"scope": "full"})
    assert serving.commands.calls == ["update"]


def cut(payload: str) -> str:
    """As far as the name of its segment, and one byte more."""
    raw = base64.b64decode(payload)
    return base64_of(raw[: raw.index(b"/torch_") + 40])


UNREADABLE: dict[str, Callable[[Sender], dict[str, object]]] = {
    "another format": lambda sender: {"load_format": "direct"},
    "a format that is code": lambda sender: {"load_format": "verl.delta_loader.apply_delta"},
    "cut off": lambda sender: {"serialized_named_tensors": [cut(sender.payload)]},
    "a foreign opcode in front": lambda sender: {
        "serialized_named_tensors": [base64_of(b"P" + base64.b64decode(sender.payload))]
    },
    "one too many": lambda sender: {"serialized_named_tensors": [sender.payload, EMPTY]},
    "for another device": lambda sender: {"serialized_named_tensors": {"b-2": sender.payload}},
    "base64 twice, cut off": lambda sender: {
        "serialized_named_tensors": [base64_of(cut(sender.payload).encode())]
    },
    "a letter that is not of base64": lambda sender: {
        "serialized_named_tensors": [sender.payload + "####"]
    },
}


@pytest.mark.parametrize("case", UNREADABLE)
async def test_what_a_refused_payload_names_is_let_go(
    serving: Any, sender: Sender, case: str
) -> None:
    await serving.json("POST", PATH, json=sender.body(**UNREADABLE[case](sender)))
    (update,) = serving.commands.received
    with pytest.raises(UpdateRejected), update.options["pushed"].opened():
        raise AssertionError("was opened")
    assert sender.users == 1


@pytest.mark.parametrize("fields", [{"selector": "draft"}, {"scope": "some"}, {"pause_mode": "no"}])
@pytest.mark.parametrize("labelled", [False, True])
async def test_so_is_that_of_a_request_whose_fields_are_refused(
    serving: Any, sender: Sender, fields: dict[str, object], labelled: bool
) -> None:
    payloads = {"a-1": sender.payload} if labelled else [sender.payload]
    body = sender.body(**fields, serialized_named_tensors=payloads)
    status, _ = await serving.json("POST", PATH, json=body)
    assert (status, serving.commands.received) == (400, [])
    assert sender.users == 1


@pytest.mark.parametrize(
    "wrap", [lambda one: one, lambda one: [[one], 5], lambda one: {"a": [one]}]
)
async def test_so_is_that_of_a_field_that_nobody_reads(
    serving: Any, sender: Sender, wrap: Callable[[str], object]
) -> None:
    body = {"serialized_named_tensors": [EMPTY], "payload": wrap(sender.payload)}
    status, _ = await serving.json("POST", PATH, json=body)
    assert (status, sender.users) == (200, 1)


async def test_only_the_first_rank_lets_that_go(serving: Any, sender: Sender) -> None:
    serving.app.state.served.placement = Placement(rank=1, world_size=2)
    body = {"serialized_named_tensors": [EMPTY, EMPTY], "payload": sender.payload}
    status, _ = await serving.json("POST", PATH, json=body)
    assert (status, sender.users) == (200, 2)


@pytest.mark.parametrize("payloads", [None, 5, "x", [None, 5], {"a": 5}])
async def test_payloads_that_are_none_are_refused(serving: Any, payloads: object) -> None:
    status, reply = await serving.json("POST", PATH, json={"serialized_named_tensors": payloads})
    assert (status, reply["success"]) == (400, False)
    assert "serialized_named_tensors" in reply["message"]


async def test_a_refused_command_lets_it_go_too(serving: Any, sender: Sender) -> None:
    serving.commands.refusal = InFlight("requests are in flight")
    status, reply = await serving.json("POST", PATH, json=sender.body())
    assert (status, reply["error"]["retryable"]) == (409, True)
    assert sender.users == 1


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_a_payload_for_each_rank(serving: Any, count: int) -> None:
    """A26: a wrong number is refused before any of them is looked into."""
    serving.app.state.served.placement = Placement(rank=1, world_size=2)
    body = {"serialized_named_tensors": ["no base64"] * count}
    await serving.json("POST", PATH, json=body)
    (update,) = serving.commands.received
    with pytest.raises(Exception, match=f"{count} payloads"), update.options["pushed"].opened():
        raise AssertionError("was opened")


class OnGpu(ScriptedEngine):
    device_uuid = "aaaa-1111"


@pytest.mark.parametrize("label", ["aaaa-1111", "GPU-AAAA-1111"])
async def test_a_labelled_payload_goes_by_its_label(serve: Any, label: str) -> None:
    serving = serve(engine=OnGpu())
    serving.app.state.served.placement = Placement(rank=0, world_size=2)
    body = {"serialized_named_tensors": {"bbbb-2222": NO_TENSOR, label: EMPTY}}
    status, reply = await serving.json("POST", PATH, json=body)
    assert (status, reply["tensors_loaded"]) == (200, 0)
    assert serving.commands.calls == []


async def test_a_label_of_another_device_is_refused(serving: Any) -> None:
    await serving.json("POST", PATH, json={"serialized_named_tensors": {"bbbb-2222": EMPTY}})
    (update,) = serving.commands.received
    with pytest.raises(Exception, match="no device that has a UUID"):
        update.options["pushed"].opened().__enter__()


async def test_a_chunk_of_a_session_is_staged(serving: Any, sender: Sender) -> None:
    status, begun = await serving.json("POST", "/hotswap/v1/begin", json={"scope": "partial"})
    named = {"update_id": begun["update_id"]}
    assert status == 200
    status, reply = await serving.json("POST", PATH, json=sender.body(**named))
    assert (status, reply["staged"], reply["tensors_loaded"]) == (200, True, 1)
    assert sender.users == 1
    assert serving.commands.calls == []
    status, reply = await serving.json(
        "POST", PATH, json={**named, "serialized_named_tensors": [EMPTY]}
    )
    assert (status, reply["staged"], reply["update_id"]) == (200, True, named["update_id"])
    status, reply = await serving.json(
        "POST", "/update_weights_from_disk", json={"model_path": "/b"}
    )
    assert (status, reply["error"]["code"]) == (409, "busy")
    _, reply = await serving.json("POST", "/hotswap/v1/commit", json={**named, "weight_version": 4})
    assert (reply["weight_version"], reply["update_id"]) == ("4", named["update_id"])
    status, reply = await serving.json("POST", PATH, json=sender.body(**named))
    assert (status, "was committed" in reply["message"]) == (409, True)


async def test_a_label_within_a_session_is_that_of_its_commit(serving: Any, sender: Sender) -> None:
    await serving.json("POST", "/begin_weight_update")
    await serving.json("POST", PATH, json=sender.body(flush_cache=False))
    _, reply = await serving.json("POST", "/update_weight_version", json={"new_version": "5"})
    assert (reply["new_version"], serving.commands.stamp.version) == ("5", None)
    _, reply = await serving.json("POST", "/end_weight_update")
    assert (reply["num_updates"], reply["weight_version"]) == (1, "5")
    (update,) = serving.commands.received
    assert (update.flush_cache, update.chunk) == (False, False)


async def test_an_abort_says_whether_there_was_anything(serving: Any) -> None:
    for body, aborted in (({}, False), ({"update_id": "x"}, False)):
        _, reply = await serving.json("POST", "/hotswap/v1/abort", json=body)
        assert (reply["aborted"], reply["update_id"]) == (aborted, None)
        assert reply["message"] == "Success"
    await serving.json("POST", "/hotswap/v1/begin", json={"update_id": "x"})
    status, reply = await serving.json("POST", "/hotswap/v1/abort", json={"update_id": "y"})
    assert (status, reply["success"], reply["aborted"]) == (200, True, False)
    assert reply["message"].startswith("nothing to abort: 'y' is not open, 'x' is; name that one")
    _, reply = await serving.json("POST", "/hotswap/v1/abort")
    assert (reply["aborted"], reply["update_id"]) == (True, "x")
