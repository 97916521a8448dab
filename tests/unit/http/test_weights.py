from typing import Any

import pytest
import torch

from hotswap.errors import (
    HotswapError,
    InFlight,
    UpdateFailed,
    UpdateRejected,
    UpdateRolledBack,
)
from hotswap.plugins import Plugins, Refusal
from hotswap.state import IDLE_OR_PAUSES
from hotswap.types import LoadMode, PauseMode, WeightStamp

UPDATE = "/update_weights_from_disk"


async def test_update_from_disk(serving: Any) -> None:
    status, body = await serving.json(
        "POST",
        UPDATE,
        json={"model_path": "/models/b", "weight_version": "plus1", "token_step": 7},
    )

    assert status == 200
    assert body == {
        "success": True,
        "message": "Succeeded to update model weights from disk.",
        "model_dir": "/models/b",
        "tensors_loaded": 310,
        "flushed_cache": True,
        "entries_cleared": 3,
        "num_aborted_requests": 1,
        "num_paused_requests": 4,
        "weight_version": "plus1",
        "token_step": 7,
        "weight_update_count": 1,
        "weight_epoch": 1,
        "elapsed_ms": 12.25,
        "staged_ms": 10.0,
        "paused_ms": 1.5,
        "bytes": 4096,
        "mode": "full",
        "load_mode": "staged",
        "elements_moved": 0,
        "missing": [],
        "unknown": [],
    }
    (update,) = serving.commands.received
    assert (update.strategy, update.source, update.flush_cache) == ("disk", "/models/b", True)
    assert (update.pause_mode, update.mode) == (None, LoadMode.STAGED)
    assert (await serving.json("GET", "/model_info"))[1]["model_path"] == "/models/b"


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"model_dir": "/b"}, {"source": "/b"}),
        ({"model_path": "/b", "model_dir": "/c"}, {"source": "/b"}),
        ({"model_path": "/b", "weight_version": 3}, {"version": "3"}),
        ({"model_path": "/b", "weight_version": "000003"}, {"version": "000003"}),
        ({"model_path": "/b", "weight_version": "null"}, {"version": "null"}),
        ({"model_path": "/b", "weight_version": None}, {"version": None}),
        ({"model_path": "/b", "token_step": "12"}, {"token_step": 12}),
        ({"model_path": "/b", "token_step": 0}, {"token_step": 0}),
        ({"model_path": "/b", "token_step": None}, {"token_step": None}),
        ({"model_path": "/b", "flush_cache": "false"}, {"flush_cache": False}),
        ({"model_path": "/b", "flush_cache": None}, {"flush_cache": True}),
        ({"model_path": "/b", "flush_cache": 0}, {"flush_cache": False}),
        ({"model_path": "/b", "abort_all_requests": True}, {"pause_mode": PauseMode.ABORT}),
        ({"model_path": "/b", "abort_all_requests": "1"}, {"pause_mode": PauseMode.ABORT}),
        ({"model_path": "/b", "pause_mode": "retract"}, {"pause_mode": PauseMode.RETRACT}),
        ({"model_path": "/b", "load_format": "auto", "manifest": {}}, {"source": "/b"}),
    ],
)
async def test_lenient_bodies(
    serving: Any, body: dict[str, object], wanted: dict[str, object]
) -> None:
    status, _ = await serving.json("POST", UPDATE, json=body)

    assert status == 200
    (update,) = serving.commands.received
    assert {name: getattr(update, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "model_path"),
        ({"model_path": None}, "model_path"),
        ({"model_path": ""}, "model_path"),
        ({"model_path": 3}, "model_path"),
        ({"model_path": "/b\0c"}, "model_path"),
        ({"model_path": "/b", "weight_version": 1.5}, "weight_version"),
        ({"model_path": "/b", "weight_version": ["1"]}, "weight_version"),
        ({"model_path": "/b", "token_step": "x"}, "token_step"),
        ({"model_path": "/b", "token_step": True}, "token_step"),
        ({"model_path": "/b", "flush_cache": "perhaps"}, "flush_cache"),
        ({"model_path": "/b", "abort_all_requests": 2}, "abort_all_requests"),
        ({"model_path": "/b", "pause_mode": "bogus"}, "pause_mode"),
    ],
)
async def test_wrong_bodies_name_the_field(
    serving: Any, body: dict[str, object], named: str
) -> None:
    status, reply = await serving.json("POST", UPDATE, json=body)

    assert status == 400
    assert reply["error"]["code"] == "validation_error"
    assert reply["success"] is False
    assert named in reply["message"]
    assert serving.commands.calls == []


async def test_load_mode_is_the_server_s(serve: Any) -> None:
    serving = serve(load_mode="direct")
    _, body = await serving.json("POST", UPDATE, json={"model_path": "/b"})

    assert (body["mode"], body["load_mode"]) == ("full", "direct")


IN_FLIGHT = InFlight(f"swap refused: {IDLE_OR_PAUSES.hint}")


@pytest.mark.parametrize(
    ("error", "status", "code", "retryable"),
    [
        (UpdateRejected("hidden_size is 4, wanted 8"), 400, "validation_error", False),
        (IN_FLIGHT, 409, "conflict", True),
        (UpdateRolledBack("disk error; put back"), 500, "update_rolled_back", True),
        (UpdateFailed("not whole"), 500, "update_failed", False),
    ],
)
async def test_a_failed_update_says_so_and_changes_no_label(
    serving: Any, error: HotswapError, status: int, code: str, retryable: bool
) -> None:
    serving.commands.refusal = error
    seen, body = await serving.json(
        "POST", UPDATE, json={"model_path": "/b", "weight_version": "new"}
    )

    assert seen == status
    assert body == {
        "error": {"code": code, "message": str(error), "retryable": retryable, "status": status},
        "success": False,
        "message": str(error),
        "error_message": str(error),
    }
    assert (await serving.json("GET", "/get_weight_version"))[1]["weight_version"] is None
    assert (await serving.json("GET", "/model_info"))[1]["model_path"] == "/models/a"


async def test_the_in_flight_hint_names_both_ways_out(serving: Any) -> None:
    serving.commands.refusal = IN_FLIGHT
    _, body = await serving.json("POST", UPDATE, json={"model_path": "/b"})

    assert 'pause_generation(mode="abort")' in body["error"]["message"]
    assert "abort_all_requests" in body["error"]["message"]


async def test_without_the_strategy_the_package_is_named(serve: Any) -> None:
    serving = serve(plugins=Plugins())
    status, body = await serving.json("POST", UPDATE, json={"model_path": "/b"})

    assert status == 400
    assert "pip install hotswap-disk" in body["message"]
    assert serving.commands.calls == []


async def test_a_refused_plugin_is_named_with_its_reason(serve: Any) -> None:
    refusal = Refusal(name="hotswap-disk", version="9", module="m", reason="api version 9")
    serving = serve(plugins=Plugins(refusals=(refusal,)))
    _, body = await serving.json("POST", UPDATE, json={"model_path": "/b"})

    assert "api version 9" in body["message"]


@pytest.mark.parametrize("path", ["/get_weight_version", "/weight_version"])
async def test_weight_version(serving: Any, path: str) -> None:
    assert (await serving.json("GET", path)) == (
        200,
        {"weight_version": None, "token_step": None, "weight_update_count": 0, "weight_epoch": 0},
    )
    serving.commands.stamp = WeightStamp(version="v", token_step=3, update_count=2, epoch=5)
    assert (await serving.json("GET", path)) == (
        200,
        {"weight_version": "v", "token_step": 3, "weight_update_count": 2, "weight_epoch": 5},
    )


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("GET", {"json": {"name": "embed.weight", "truncate_size": 2}}),
        ("POST", {"json": {"name": "embed.weight", "truncate_size": "2"}}),
        ("GET", {"params": {"name": "embed.weight", "truncate_size": "2"}}),
    ],
)
async def test_weights_by_name(serving: Any, method: str, options: dict[str, Any]) -> None:
    status, body = await serving.json(method, "/get_weights_by_name", **options)

    assert (status, body) == (200, {"parameter": [[0.0, 1.0], [2.0, 3.0]]})


async def test_a_hundred_rows_are_shown_by_default(serving: Any) -> None:
    serving.engine.tensors["long"] = torch.zeros(300, 2)
    _, body = await serving.json("GET", "/get_weights_by_name", json={"name": "long"})

    assert len(body["parameter"]) == 100


async def test_scalars_and_values_that_json_lacks(serving: Any) -> None:
    serving.engine.tensors["scale"] = torch.tensor(2.5)
    serving.engine.tensors["bad"] = torch.tensor([float("nan"), 1.0])

    assert (await serving.json("GET", "/get_weights_by_name", json={"name": "scale"}))[1] == {
        "parameter": 2.5
    }
    assert (await serving.json("GET", "/get_weights_by_name", json={"name": "bad"}))[1] == {
        "parameter": [None, 1.0]
    }


async def test_an_unknown_name_is_a_404(serving: Any) -> None:
    status, body = await serving.json("GET", "/get_weights_by_name", json={"name": "nope"})

    assert status == 404
    assert body["error"]["code"] == "not_found"
    assert "'nope'" in body["error"]["message"]


@pytest.mark.parametrize("body", [{}, {"name": "x", "truncate_size": -1}, {"name": 3}])
async def test_bad_lookups(serving: Any, body: dict[str, object]) -> None:
    status, reply = await serving.json("POST", "/get_weights_by_name", json=body)

    assert (status, reply["error"]["code"]) == (400, "validation_error")
