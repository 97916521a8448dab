from typing import Any

import pytest

from hotswap import __version__
from hotswap.coverage import Coverage
from hotswap.state import Facts, Machine, Weights
from hotswap.testing.scripted_engine import ScriptedEngine
from hotswap.testing.tiny_modules import TinyModel, tiny_target
from hotswap.types import Manifest, PauseMode, Scope, WeightStamp

WEIGHTS = {
    "weight_version": None,
    "token_step": None,
    "weight_update_count": 0,
    "weight_epoch": 0,
    "last_weight_update_ms": None,
    "coverage": None,
}
FACTS = {"gate": None, "weights": "whole", "kv": "resident", "busy": "nothing"}


async def test_health(serving: Any) -> None:
    assert await serving.json("GET", "/health") == (
        200,
        {"status": "ok", "state": "serving", "engine_alive": True, "shutting_down": False},
    )


@pytest.mark.parametrize(
    "facts", [Facts(gate=PauseMode.ABORT), Facts(weights=Weights.TORN)], ids=["paused", "torn"]
)
async def test_health_is_no_matter_of_the_state(serving: Any, facts: Facts) -> None:
    serving.commands.machine = Machine(facts)

    assert (await serving.json("GET", "/health"))[0] == 200


async def test_a_dead_engine_is_not_healthy(serving: Any) -> None:
    serving.engine.alive = False

    status, body = await serving.json("GET", "/health")
    assert (status, body["engine_alive"], body["status"]) == (503, False, "unhealthy")
    status, body = await serving.json("GET", "/ready")
    assert (status, body["reasons"]) == (503, ["engine_not_running"])


async def test_a_server_whose_queue_is_full_is_not_ready(serve: Any) -> None:
    serving = serve(
        engine=ScriptedEngine(reply=None), max_running_requests=2, max_queued_requests=1
    )
    for rid in ("a", "b", "c"):
        assert (await serving.json("GET", "/ready"))[0] == 200
        status, _ = await serving.json("POST", "/submit", json={"text": "x", "rid": rid})
        assert status == 202

    status, body = await serving.json("GET", "/ready")
    assert (status, body["reasons"]) == (503, ["waiting_queue_full"])
    assert (await serving.json("GET", "/health"))[0] == 200
    serving.engine.generations["b"].finish("length")
    assert (await serving.json("GET", "/result/b?timeout=60"))[0] == 200
    assert (await serving.json("GET", "/ready"))[0] == 200
    assert (
        await serving.client.post("/abort_request", json={"abort_all": True})
    ).status_code == 200
    for rid in ("a", "c"):
        assert (await serving.json("GET", f"/result/{rid}?timeout=60"))[0] == 200


async def test_a_server_going_down_is_not_healthy(serving: Any) -> None:
    serving.app.state.served.requests.close()

    status, body = await serving.json("GET", "/health")
    assert (status, body["shutting_down"]) == (503, True)
    assert (await serving.json("GET", "/ready"))[1]["reasons"] == ["shutting_down"]


async def test_ready(serving: Any) -> None:
    status, body = await serving.json("GET", "/ready")
    assert status == 200
    assert body == {"ready": True, "reasons": [], "state": "serving"}


async def test_not_ready(serving: Any) -> None:
    serving.commands.reasons = ["paused", "weights_not_whole"]
    serving.commands.machine = Machine(Facts(gate=PauseMode.RETRACT))

    assert await serving.json("GET", "/ready") == (
        503,
        {"ready": False, "reasons": ["paused", "weights_not_whole"], "state": "paused"},
    )


async def test_status(serving: Any) -> None:
    status, body = await serving.json("GET", "/status")

    assert status == 200
    assert body == {
        "version": __version__,
        "state": "serving",
        "facts": FACTS,
        "ready": True,
        "reasons": [],
        "weights": WEIGHTS,
        "updates": [],
        "session": None,
        "in_flight": {"running": 0, "waiting": 0, "holding_kv": 0},
        "http_requests": 0,
        "counters": {"commands": {}, "updates": {}, "states": {}},
        "cache": None,
        "model_path": "/models/a",
        "follow": None,
    }


async def test_status_after_an_update(serving: Any) -> None:
    body = {"model_path": "/b", "weight_version": "v", "token_step": 2}
    await serving.json("POST", "/update_weights_from_disk", json=body)

    _, reply = await serving.json("GET", "/status")
    assert reply["weights"] == {
        "weight_version": "v",
        "token_step": 2,
        "weight_update_count": 1,
        "weight_epoch": 1,
        "last_weight_update_ms": 12.25,
        "coverage": None,
    }


async def test_status_between_the_chunks_of_a_push(serving: Any) -> None:
    target = tiny_target(TinyModel())
    coverage = serving.commands.coverage = Coverage(target.manifest().names)
    two = [target.manifest()[name] for name in ("mean", "steps")]
    coverage.add(target.plan(Manifest.of(two), Scope.PARTIAL), version="7")

    for path in ("/status", "/hotswap/v1/state"):
        _, reply = await serving.json("GET", path)
        assert reply["weights"]["coverage"] == {"covered": 2, "of": 13, "version": "7"}


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
async def test_model_info(serving: Any, path: str) -> None:
    serving.commands.stamp = WeightStamp(version="v", epoch=3)

    assert await serving.json("GET", path) == (
        200,
        {
            "tokenizer_path": "/models/a",
            "is_generation": True,
            "preferred_sampling_params": None,
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": "scripted",
            "architectures": None,
            "vocab_size": 256,
            "model_path": "/models/a",
            "weight_version": "v",
            "weight_epoch": 3,
        },
    )


async def test_native_state(serving: Any) -> None:
    serving.commands.machine = Machine(Facts(gate=PauseMode.ABORT))
    serving.commands.reasons = ["paused"]

    status, body = await serving.json("GET", "/hotswap/v1/state")

    # At least the task of this very request.
    assert body.pop("tasks") >= 1
    assert (status, body) == (
        200,
        {
            "state": "paused",
            "facts": {**FACTS, "gate": "abort"},
            "reasons": ["paused"],
            "weights": WEIGHTS,
            "updates": [],
            "session": None,
            "follow": None,
            "in_flight": {"running": 0, "waiting": 0, "holding_kv": 0},
        },
    )


def test_the_newest_epoch_names_the_source(serving: Any) -> None:
    served = serving.app.state.served
    served.note_source(2, "/b")
    served.note_source(1, "/c")

    assert served.model_path == "/b"
