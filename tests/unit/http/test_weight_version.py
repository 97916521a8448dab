from typing import Any

import pytest

from hotswap.errors import IllegalCommand
from hotswap.types import WeightStamp

RELABEL = "/update_weight_version"


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
@pytest.mark.parametrize(
    ("fields", "call", "aborted"),
    [
        ({}, "relabel 8 abort", 2),
        ({"abort_all_requests": True}, "relabel 8 abort", 2),
        ({"abort_all_requests": False}, "relabel 8", 0),
        ({"abort_all_requests": "false", "rid": None}, "relabel 8", 0),
    ],
)
async def test_a_relabel(
    serve: Any, dialect: str, fields: dict[str, object], call: str, aborted: int
) -> None:
    serving = serve(dialect=dialect)
    serving.commands.stamp = WeightStamp(version="7", update_count=2, epoch=5)
    status, body = await serving.json("POST", RELABEL, json={"new_version": "8", **fields})

    assert (status, body) == (
        200,
        {
            "success": True,
            "message": "Weight version updated to 8",
            "new_version": "8",
            "num_aborted_requests": aborted,
        },
    )
    assert serving.commands.calls == [call]
    for path in ("/get_weight_version", "/weight_version", "/model_info"):
        _, seen = await serving.json("GET", path)
        assert (seen["weight_version"], seen["weight_epoch"]) == ("8", 5)


async def test_a_number_is_a_label_too(serving: Any) -> None:
    _, body = await serving.json("POST", RELABEL, json={"new_version": 8})
    assert body["new_version"] == "8"


@pytest.mark.parametrize(
    "body", [{}, {"new_version": None}, {"new_version": ["8"]}, {"new_version": "8" * 5000}]
)
async def test_a_relabel_needs_a_label(serving: Any, body: dict[str, object]) -> None:
    status, reply = await serving.json("POST", RELABEL, json=body)

    assert (status, reply["success"]) == (400, False)
    assert "new_version" in reply["error_message"]
    assert serving.commands.calls == []


@pytest.mark.parametrize(("dialect", "wanted"), [("gr", 409), ("sglang", 400)])
async def test_a_refused_relabel_changes_nothing(serve: Any, dialect: str, wanted: int) -> None:
    serving = serve(dialect=dialect)
    serving.commands.refusal = IllegalCommand("the weights are not whole")
    status, body = await serving.json("POST", RELABEL, json={"new_version": "8"})

    assert (status, body["success"]) == (wanted, False)
    assert body["error_message"] == "the weights are not whole"
    assert serving.commands.stamp == WeightStamp()


async def session_of(serving: Any) -> Any:
    """What it is for, and how much was done in it; None while none is open."""
    session = (await serving.json("GET", "/hotswap/v1/state"))[1]["session"]
    return session and {key: session[key] for key in ("selector", "updates")}


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
async def test_a_session_brackets_updates(serve: Any, dialect: str) -> None:
    serving = serve(dialect=dialect)
    update = {"model_path": "/b"}
    assert (await serving.json("POST", "/update_weights_from_disk", json=update))[0] == 200
    status, body = await serving.json("POST", "/begin_weight_update", json={"selector": "target"})
    assert (status, body["success"], body["message"]) == (200, True, "Success")
    begun = body["update_id"]
    assert await session_of(serving) == {"selector": "target", "updates": 0}

    status, body = await serving.json("POST", "/begin_weight_update", json={})
    assert (status, body["success"]) == (400, False)
    assert "is open" in body["error_message"]
    assert (await serving.json("POST", "/update_weights_from_disk", json=update))[0] == 200
    assert await session_of(serving) == {"selector": "target", "updates": 1}

    status, body = await serving.json("POST", "/end_weight_update", json={})
    update_id = body.pop("update_id")
    assert (status, body) == (200, {"success": True, "message": "Success", "num_updates": 1})
    assert update_id == begun
    status, body = await serving.json("POST", "/end_weight_update")
    assert (status, body["success"]) == (400, False)
    assert "no weight update session" in body["error_message"]
    assert await session_of(serving) is None


async def test_a_session_without_an_update_ends_without_a_command(serving: Any) -> None:
    await serving.json("POST", "/begin_weight_update")
    status, body = await serving.json("POST", "/end_weight_update")

    assert (status, body["num_updates"]) == (200, 0)
    assert serving.commands.calls == []


async def test_there_is_no_draft_model(serving: Any) -> None:
    status, body = await serving.json("POST", "/begin_weight_update", json={"selector": "draft"})

    assert (status, body["success"]) == (400, False)
    assert "selector" in body["message"]
