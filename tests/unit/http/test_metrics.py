"""``/metrics``: always answered, whatever the server or a plug-in is doing."""

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
from hotswap_disk import hotswap_metrics
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from hotswap.api_keys import ApiKey
from hotswap.engine.prefix_cache import CacheStats
from hotswap.follow import Follower, FollowOptions
from hotswap.state import Command, Machine, Outcome, Situation
from hotswap.testing.asgi_call import AsgiCall
from hotswap.testing.scripted_engine import ScriptedEngine
from hotswap.types import EngineLoad, PauseMode
from tests.markdown_blocks import ROOT
from tests.unit.http.conftest import Serving


async def scraped(serving: Serving, path: str = "/metrics") -> dict[str, float]:
    reply = await serving.client.get(path)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        f"{sample.name}{sorted(sample.labels.items()) or ''}": sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


async def test_both_paths_say_the_same(serving: Serving) -> None:
    first, second = await scraped(serving), await scraped(serving, "/metrics/prometheus")
    differ = {name for name in first | second if first.get(name) != second.get(name)}
    assert all("hotswap_http_responses_total" in name for name in differ), differ
    assert first["hotswap_state[('state', 'serving')]"] == 1
    assert first["hotswap_engine_alive"] == 1


async def test_generation_is_counted(serving: Serving) -> None:
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 4}}
    reply = await serving.client.post("/generate", json=body)
    tokens = reply.json()["meta_info"]["completion_tokens"]

    now = await scraped(serving)

    assert now["hotswap_prompt_tokens_total"] == 3
    assert now["hotswap_output_tokens_total"] == tokens > 0
    assert sum(v for k, v in now.items() if k.startswith("hotswap_requests_total")) == 1
    assert now["hotswap_http_generation_requests"] == 0


async def test_two_apps_in_one_process_measure_apart(serve: Callable[..., Serving]) -> None:
    first, second = serve(), serve()
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 4}}
    await first.client.post("/generate", json=body)
    await first.client.post("/pause_generation")

    theirs, others = await scraped(first), await scraped(second)

    assert theirs["hotswap_prompt_tokens_total"] == 3
    assert theirs["hotswap_state[('state', 'paused')]"] == 1
    assert others["hotswap_prompt_tokens_total"] == 0
    assert others["hotswap_state[('state', 'serving')]"] == 1
    assert not [name for name in others if "responses" in name or "commands" in name]


@pytest.mark.parametrize("command", [Command.UPDATE, Command.FLUSH, Command.SLEEP])
async def test_a_scrape_waits_for_no_command(serving: Serving, command: Command) -> None:
    machine: Machine = serving.commands.machine
    now = Situation(mode=PauseMode.ABORT, releases=frozenset({"weights"}))
    machine.begin(Command.PAUSE, now)
    machine.finish(Outcome.DONE, now)
    machine.begin(command, now)
    during = await scraped(serving)
    assert during[f"hotswap_state[('state', '{machine.state}')]"] == 1
    assert during["hotswap_state[('state', 'serving')]"] == 0
    machine.finish(Outcome.DONE, now)
    assert (await scraped(serving))["hotswap_state[('state', 'updating')]"] == 0


async def test_a_scrape_while_invalid_and_while_shutting_down(serving: Serving) -> None:
    machine, now = serving.commands.machine, Situation(pauses_itself=True)
    machine.begin(Command.SWAP, now)
    machine.finish(Outcome.TORN, now)
    assert (await scraped(serving))["hotswap_state[('state', 'invalid')]"] == 1
    serving.app.state.served.begin_shutdown()
    async with AsgiCall(serving.app, "GET", "/metrics") as call:
        start, body = await call.next_message(), await call.next_message()
    assert start["status"] == 200
    assert b'hotswap_state{state="invalid"} 1.0' in body["body"]


async def test_responses_are_counted_by_template_and_never_by_path(serving: Serving) -> None:
    await serving.client.get("/health")
    await serving.client.get("/health?x=1")
    await serving.client.post("/generate", content=b"{")
    for number in range(20):
        await serving.client.get(f"/nothing/{number}")

    now = {name: v for name, v in (await scraped(serving)).items() if "responses" in name}

    def key(route: str, method: str, status: int) -> str:
        labels = [("method", method), ("route", route), ("status", str(status))]
        return f"hotswap_http_responses_total{labels}"

    assert now == {
        key("/health", "GET", 200): 2,
        key("/generate", "POST", 400): 1,
        key("unmatched", "GET", 404): 20,
    }


async def test_a_request_that_the_gate_refuses_is_counted(serve: Callable[..., Serving]) -> None:
    serving = serve(allow_weight_update=False)
    await serving.client.post("/pause_generation")
    now = await scraped(serving)
    labels = [("method", "POST"), ("route", "/pause_generation"), ("status", "403")]
    assert now[f"hotswap_http_responses_total{labels}"] == 1


class Slow(Collector):
    """A plug-in's collector that waits for something."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def collect(self) -> Iterator[Metric]:
        self.reached.set()
        assert self.go_on.wait(30)
        yield GaugeMetricFamily("slow", "Slow.", value=1)


async def test_a_slow_collector_blocks_the_scrape_and_nothing_else(serving: Serving) -> None:
    slow = Slow()
    serving.app.state.served.observation.exposition.register(slow)
    seen: dict[str, float] = {}

    async def scrape() -> None:
        seen.update(await scraped(serving))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(scrape)
        assert await anyio.to_thread.run_sync(slow.reached.wait, 30)
        assert (await serving.client.get("/health")).status_code == 200
        assert not seen
        slow.go_on.set()
    assert seen["slow"] == 1


async def test_a_collector_that_never_ends_gets_503(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotswap.http.metrics._SCRAPE_S", 0.05)
    slow = Slow()
    serving.app.state.served.observation.exposition.register(slow)
    try:
        for _ in range(2):
            reply = await serving.client.get("/metrics")
            assert reply.status_code == 503
            assert "a plug-in's collector is slow" in reply.text
    finally:
        slow.go_on.set()


class Knowing(ScriptedEngine):
    """An engine that knows its load and its cache."""

    load = EngineLoad(stalled=1, max_running=8, kv_tokens_total=4096, retractions=5)
    cache_stats = CacheStats(entries=3, size_bytes=100)


async def test_what_an_engine_knows_of_its_load(serve: Callable[..., Serving]) -> None:
    now = await scraped(serve(engine=Knowing()))
    assert now["hotswap_requests_stalled"] == 1
    assert now["hotswap_requests_running_limit"] == 8
    assert now["hotswap_kv_tokens_limit"] == 4096
    assert now["hotswap_retractions_total"] == 5
    assert (now["hotswap_prefix_cache_entries"], now["hotswap_prefix_cache_bytes"]) == (3, 100)


@pytest.mark.parametrize("path", ["/metrics", "/metrics/prometheus", "/hotswap/v1/events"])
async def test_on_a_server_with_keys_the_normal_one_is_needed(
    serve: Callable[..., Serving], path: str
) -> None:
    serving = serve(api_key=ApiKey("user"), admin_api_key=ApiKey("admin"))
    once = {"stream": "false"}
    assert (await serving.client.get(path, params=once)).status_code == 401
    headers = {"Authorization": "Bearer user"}
    assert (await serving.client.get(path, headers=headers, params=once)).status_code == 200


async def test_every_metric_is_documented_and_none_besides(
    serve: Callable[..., Serving], tmp_path: Path
) -> None:
    serving = serve(engine=Knowing())
    served = serving.app.state.served
    options = FollowOptions(source=tmp_path / "s", local=tmp_path / "l", base=tmp_path)
    served.follower = Follower(options, puller=served.puller, server=serving.commands)
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    of_core, _, of_plugins = page.partition("\n## From a plug-in\n")
    text = (await serving.client.get("/metrics")).text
    shown = {_full_name(family) for family in text_string_to_metric_families(text)}
    assert set(re.findall(r"`(hotswap_\w+)`", of_core)) == shown
    brought = {_full_name(one) for metrics in hotswap_metrics() for one in metrics.collect()}
    assert set(re.findall(r"^\| `(hotswap_\w+)`", of_plugins, re.MULTILINE)) == brought


def _full_name(family: Metric) -> str:
    return family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
