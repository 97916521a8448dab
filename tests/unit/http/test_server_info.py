import json
from typing import Any

import pytest

from hotswap import __version__
from hotswap.api_keys import ApiKey
from hotswap.settings import Settings, SettingsError
from hotswap.testing.scripted_engine import ScriptedEngine
from hotswap.types import EngineLoad, WeightStamp

# What slime and miles compare with what they started, each for equality.
COMPARED = {
    "host": "127.0.0.1",
    "port": 30000,
    "nnodes": 1,
    "node_rank": 0,
    "gpu_id_step": 1,
    "base_gpu_id": 0,
    "tp_size": 1,
    "dp_size": 1,
    "pp_size": 1,
    "ep_size": 1,
    "moe_dp_size": 1,
    "enable_memory_saver": False,
    "enable_return_routed_experts": False,
    "encoder_only": False,
    "dtype": "auto",
    "disaggregation_mode": "null",
    "model_path": "/models/a",
}


class CountingEngine(ScriptedEngine):
    @property
    def load(self) -> EngineLoad:
        return EngineLoad(kv_tokens_used=25, kv_tokens_total=100)


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
@pytest.mark.parametrize("dialect", ["gr", "sglang"])
async def test_what_clients_compare_is_flat(serve: Any, path: str, dialect: str) -> None:
    serving = serve(dialect=dialect, engine=CountingEngine(), allow_weight_update=False)
    serving.commands.stamp = WeightStamp(version="3")
    status, body = await serving.json("GET", path)

    assert status == 200
    assert {name: body[name] for name in COMPARED} == COMPARED
    assert (body["version"], body["weight_version"]) == (__version__, "3")
    assert body["max_total_num_tokens"] == 100
    assert body["internal_states"][0]["memory_usage"]["token_capacity"] == 100


async def test_the_model_path_follows_updates(serving: Any) -> None:
    await serving.json("POST", "/update_weights_from_disk", json={"model_path": "/b"})

    _, body = await serving.json("GET", "/server_info")
    assert (body["model_path"], body["tokenizer_path"]) == ("/b", "/models/a")


async def test_a_port_of_ones_own_choice_is_told(serve: Any) -> None:
    serving = serve(port=0)
    _, body = await serving.json("GET", "/server_info")

    # What httpx's transport gives to an app without a port.
    assert body["port"] in (0, 80)


async def test_told_fields_win(serve: Any) -> None:
    told = {"enable_memory_saver": True, "host": "10.0.0.1", "num_gpus": 1, "extra": {"a": [1]}}
    serving = serve(server_info=json.dumps(told))
    _, body = await serving.json("GET", "/server_info")

    assert {name: body[name] for name in told} == told
    assert body["tp_size"] == 1


@pytest.mark.parametrize(
    ("text", "told"), [("[1]", "a JSON list"), ("3", "a JSON int"), ("{", "not JSON")]
)
def test_fields_have_to_be_an_object(text: str, told: str) -> None:
    with pytest.raises(SettingsError, match=f"--server-info is {told}"):
        Settings(server_info=text)


async def test_no_key_is_told(serve: Any) -> None:
    serving = serve(api_key=ApiKey("one-secret"), admin_api_key=ApiKey("two-secret"))
    reply = await serving.client.get("/server_info", headers={"Authorization": "Bearer one-secret"})

    assert reply.status_code == 200
    assert "secret" not in reply.text


@pytest.mark.parametrize("query", [{}, {"include": "core"}, {"include": "all", "format": "json"}])
async def test_loads(serve: Any, query: dict[str, str]) -> None:
    engine = CountingEngine(reply=None)
    serving = serve(engine=engine)
    status, body = await serving.json("GET", "/v1/loads", params=query)
    assert status == 200
    (load,) = body["loads"]
    assert load == {
        "dp_rank": 0,
        "num_reqs": 0,
        "num_total_reqs": 0,
        "num_running_reqs": 0,
        "num_waiting_reqs": 0,
        "num_used_tokens": 25,
        "num_total_tokens": 25,
        "max_total_num_tokens": 100,
        "max_running_requests": 16,
        "token_usage": 0.25,
    }
    assert body["timestamp"].endswith("+00:00")

    _, body = await serving.json("GET", "/get_load")
    assert body[0].pop("ts_tic") > 0
    assert body == [
        {"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 25}
        | {"num_pending_tokens": 0}
    ]


async def test_an_engine_that_counts_nothing_has_a_load_all_the_same(serving: Any) -> None:
    _, body = await serving.json("GET", "/v1/loads")

    assert (body["loads"][0]["num_total_tokens"], body["loads"][0]["token_usage"]) == (0, 0.0)
