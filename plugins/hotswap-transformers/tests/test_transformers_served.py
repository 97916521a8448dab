"""``hotswap serve --engine transformers``: a swap over HTTP, from A to B and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from hotswap.plugins import load_plugins
from hotswap.testing.checkpoints import make_checkpoint
from hotswap.testing.server import ServerProcess

PROMPT = list(range(1, 70))


def body(new_tokens: int, **others: object) -> dict[str, object]:
    sampling = {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
    return {"input_ids": PROMPT, "sampling_params": sampling, **others}


def test_the_plug_in_brings_the_engine() -> None:
    plugins = load_plugins()
    assert "transformers" in plugins.engines
    found = [plugin for plugin in plugins.dists if plugin.name == "hotswap-transformers"]
    assert [plugin.module for plugin in found] == ["hotswap_transformers"]


def evidence(client: httpx.Client) -> tuple[list[int], str]:
    """Greedy tokens, and one checksum over every live tensor."""
    tokens = client.post("/generate", json=body(16)).json()["output_ids"]
    checked = client.post("/weights_checker", json={"action": "checksum"}).json()
    return tokens, checked["per_engine_checksum"]


def update(client: httpx.Client, directory: Path, **options: Any) -> dict[str, Any]:
    reply = client.post("/update_weights_from_disk", json={"model_path": str(directory), **options})
    body: dict[str, Any] = reply.json()
    assert body["success"], body
    return body


@pytest.mark.process
def test_it_serves_and_swaps_over_http(tmp_path: Path) -> None:
    a, b = (make_checkpoint(tmp_path / str(seed), seed=seed) for seed in (1, 2))
    with (
        ServerProcess(
            a,
            *("--engine", "transformers", "--device", "cpu", "--max-total-tokens", "4096"),
            *("--log-format", "json"),
            environ={"OMP_NUM_THREADS": "1"},
        ) as server,
        server.client() as client,
    ):
        fresh = evidence(client)
        assert client.get("/model_info").json()["architectures"] == ["LlamaForCausalLM"]
        update(client, b, weight_version="b")
        swapped = evidence(client)
        assert swapped[0] != fresh[0]
        assert swapped[1] != fresh[1]

        with client.stream("POST", "/generate", json=body(150, stream=True)) as stream:
            lines = (line for line in stream.iter_lines() if line.startswith("data: {"))
            next(lines)
            reply = update(client, a, pause_mode="retract", weight_version="a")
            assert reply["num_paused_requests"] == 1
            *_, last = lines
        meta = json.loads(last.removeprefix("data: "))["meta_info"]
        assert meta["finish_reason"] == {"type": "length", "length": 150}
        assert evidence(client) == fresh

        gone = body(1000, stream=True, rid="gone")
        with client.stream("POST", "/generate", json=gone) as stream:
            lines = (line for line in stream.iter_lines() if line.startswith("data: {"))
            next(lines)
            client.post("/abort_request", json={"rid": "gone"})
            *_, last = lines
        assert '"type":"abort"' in last
    assert server.exit_code == 0
    # transformers, which has a format of its own, logs as the server does.
    loggers = {json.loads(line)["logger"] for line in server.log.splitlines()}
    assert {"ContinuousBatchingLogger", "hotswap.update"} <= loggers
