"""Instruments, label bounds, and what a scrape is made of."""

import logging
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread
import pytest
from prometheus_client import Counter
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from hotswap.attempt import Phase, UpdateNews
from hotswap.metrics import (
    BoundedLabel,
    Exposition,
    RequestMetrics,
    ResponseMetrics,
    ServerGauges,
    UpdateMetrics,
)
from hotswap.seams import TokenChunk
from hotswap.state import Change, Command, Facts, Outcome, State
from hotswap.testing.endings import ENDINGS
from hotswap.types import (
    InFlightCounts,
    LoadMode,
    PauseMode,
    Update,
    UpdateReport,
    WeightStamp,
)


def samples(exposition: Exposition) -> dict[str, float]:
    """Every sample by its name and labels, as a Prometheus would read it."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(exposition.render().decode()):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sample.labels.items())
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert name not in found, f"{name} appears twice"
            found[name] = sample.value
    return found


@dataclass(slots=True)
class Scripted:
    """A generation that has its chunks already."""

    chunks: Sequence[TokenChunk]
    aborts: int = 0
    _next: Iterator[TokenChunk] = field(init=False)

    def __post_init__(self) -> None:
        self._next = iter(self.chunks)

    def __aiter__(self) -> AsyncIterator[TokenChunk]:
        return self

    async def __anext__(self) -> TokenChunk:
        for chunk in self._next:
            return chunk
        raise StopAsyncIteration

    def abort(self) -> None:
        self.aborts += 1


def chunks(tokens: int, finish: str, *, cached: int = 0) -> list[TokenChunk]:
    made = [
        TokenChunk(token_id=token, stamp=WeightStamp(), cached_tokens=cached)
        for token in range(tokens)
    ]
    return [*made, TokenChunk(token_id=None, stamp=WeightStamp(), finish_reason=finish)]


@pytest.mark.parametrize("outcome", ["stop", "length", "error"])
async def test_a_request_counts_once_with_its_tokens(outcome: str) -> None:
    exposition = Exposition()
    metrics = RequestMetrics(exposition.registry)
    watched = metrics.watch(Scripted(chunks(3, outcome, cached=16)), prompt_tokens=20)

    seen = [chunk.token_id async for chunk in watched]
    watched.abort()

    assert seen == [0, 1, 2, None]
    now = samples(exposition)
    assert now[f"hotswap_requests_total{{outcome={outcome}}}"] == 1
    assert sum(v for k, v in now.items() if k.startswith("hotswap_requests_total")) == 1
    assert now["hotswap_prompt_tokens_total"] == 20
    assert now["hotswap_output_tokens_total"] == 3
    assert now["hotswap_prefix_cache_hits_total"] == 1
    assert now["hotswap_prefix_cache_misses_total"] == 0
    assert now["hotswap_prefix_cache_hit_tokens_total"] == 16
    assert now["hotswap_time_to_first_token_seconds_count"] == 1
    assert now["hotswap_time_per_output_token_seconds_count"] == 1


async def test_one_token_has_no_time_between_tokens_and_no_cache_is_a_miss() -> None:
    exposition = Exposition()
    metrics = RequestMetrics(exposition.registry)

    async for _ in metrics.watch(Scripted(chunks(1, "length")), prompt_tokens=1):
        pass

    now = samples(exposition)
    assert now["hotswap_time_per_output_token_seconds_count"] == 0
    assert now["hotswap_prefix_cache_misses_total"] == 1


@pytest.mark.parametrize("cause", ["client", "engine", "shutdown"])
async def test_aborts_by_who_asked_for_them(cause: str) -> None:
    exposition = Exposition()
    metrics = RequestMetrics(exposition.registry)
    metrics.closing = cause == "shutdown"
    inner = Scripted(chunks(1, "abort"))
    watched = metrics.watch(inner, prompt_tokens=1)
    if cause != "engine":
        watched.abort()
    async for _ in watched:
        pass

    assert inner.aborts == (cause != "engine")
    now = samples(exposition)
    assert now["hotswap_requests_total{outcome=abort}"] == 1
    assert [k for k, v in now.items() if "aborted_total" in k and v] == [
        f"hotswap_requests_aborted_total{{cause={cause}}}"
    ]


def report() -> UpdateReport:
    return UpdateReport(
        stamp=WeightStamp(epoch=1),
        tensors_applied=3,
        bytes_applied=1000,
        flushed_cache=True,
        entries_cleared=0,
        num_aborted_requests=0,
        num_paused_requests=0,
        load_mode=LoadMode.STAGED,
        staged_ms=2000.0,
        paused_ms=4.0,
        elapsed_ms=2100.0,
    )


def ended(strategy: str, outcome: str, result: UpdateReport | None = None) -> UpdateNews:
    return UpdateNews(
        number=1,
        update=Update(source="/x", strategy=strategy),
        phase=Phase.COMMITTING,
        outcome=outcome,
        report=result,
    )


def test_updates_by_strategy_and_outcome_and_what_they_cost() -> None:
    exposition = Exposition()
    metrics = UpdateMetrics(exposition.registry)
    metrics.note_update(UpdateNews(number=1, update=Update(source="/x"), phase=Phase.STAGING))
    metrics.note_update(ended("disk", "committed", report()))
    metrics.note_update(ended("disk", "rejected"))

    now = samples(exposition)
    assert now["hotswap_updates_total{outcome=committed,strategy=disk}"] == 1
    assert now["hotswap_updates_total{outcome=rejected,strategy=disk}"] == 1
    assert now["hotswap_update_bytes_total"] == 1000
    assert now["hotswap_update_staged_seconds_sum"] == 2.0
    assert now["hotswap_update_paused_seconds_sum"] == 0.004
    assert now["hotswap_update_elapsed_seconds_sum"] == 2.1
    assert now["hotswap_update_elapsed_seconds_count"] == 1
    assert now["hotswap_update_paused_seconds_bucket{le=0.005}"] == 1
    assert now["hotswap_update_paused_seconds_bucket{le=0.0025}"] == 0


def test_a_strategy_that_clients_make_up_does_not_make_series() -> None:
    exposition = Exposition()
    metrics = UpdateMetrics(exposition.registry)
    for number in range(1000):
        metrics.note_update(ended(f"made-up-{number}", "rejected"))

    series = [name for name in samples(exposition) if name.startswith("hotswap_updates_total")]
    assert len(series) == 33
    assert (
        samples(exposition)["hotswap_updates_total{outcome=rejected,strategy=other}"] == 1000 - 32
    )


def test_commands_and_states() -> None:
    exposition = Exposition()
    metrics = UpdateMetrics(exposition.registry)
    paused = Facts(gate=PauseMode.ABORT)
    metrics.note_change(
        Change(before=Facts(), after=paused, command=Command.PAUSE, outcome=Outcome.DONE)
    )
    metrics.note_change(
        Change(before=paused, after=paused, command=Command.PAUSE, outcome=Outcome.DONE)
    )

    now = samples(exposition)
    assert now["hotswap_commands_total{command=pause,outcome=done}"] == 2
    assert now["hotswap_state_entered_total{state=paused}"] == 1


def test_a_bounded_label_cuts_long_values_and_keeps_known_ones() -> None:
    label = BoundedLabel(limit=2, max_characters=3)
    assert [label(value) for value in ("abcdef", "abcxyz", "b", "c", "b")] == [
        "abc",
        "abc",
        "b",
        "other",
        "b",
    ]
    assert repr(label) == "<BoundedLabel 2 of 2>"


def test_responses_have_templates_and_known_methods_only() -> None:
    exposition = Exposition()
    metrics = ResponseMetrics(exposition.registry)
    metrics.note(route="/poll/{id}", method="GET", status=200)
    metrics.note(route=None, method="GET", status=404)
    for number in range(50):
        metrics.note(route=None, method=f"X{number}", status=404)

    assert samples(exposition) == {
        "hotswap_http_responses_total{method=GET,route=/poll/{id},status=200}": 1,
        "hotswap_http_responses_total{method=GET,route=unmatched,status=404}": 1,
        "hotswap_http_responses_total{method=other,route=unmatched,status=404}": 50,
    }


@dataclass(frozen=True, slots=True)
class Live:
    state: State
    stamp: WeightStamp
    in_flight: InFlightCounts
    numbers: Sequence[tuple[str, str, float]] = ()


def test_gauges_are_what_is_true_now() -> None:
    exposition = Exposition()
    live = Live(
        State.INVALID,
        WeightStamp(version='7"\n\\', epoch=3),
        InFlightCounts(running=2, waiting=5),
        [("hotswap_extra", "An extra one.", 4.0)],
    )
    exposition.registry.register(ServerGauges(live))

    text, now = exposition.render().decode(), samples(exposition)

    states = {state: now[f"hotswap_state{{state={state}}}"] for state in State}
    assert states == dict.fromkeys(State, 0.0) | {State.INVALID: 1.0}
    assert (now["hotswap_requests_running"], now["hotswap_requests_waiting"]) == (2, 5)
    assert (now["hotswap_weight_epoch"], now["hotswap_extra"]) == (3, 4)
    assert 'hotswap_weights_info{epoch="3",version="7\\"\\n\\\\"} 1.0' in text
    assert now['hotswap_weights_info{epoch=3,version=7"\n\\}'] == 1


def test_a_version_is_cut_short() -> None:
    exposition = Exposition()
    live = Live(State.SERVING, WeightStamp(version="v" * 4096), InFlightCounts())
    exposition.registry.register(ServerGauges(live))
    assert f'version="{"v" * 128}"' in exposition.render().decode()


class Plugin(Collector):
    """What a plug-in may bring; ``families`` may be anything."""

    def __init__(self, *families: Metric, fails: bool = False) -> None:
        self.families = families
        self.fails = fails

    def collect(self) -> Iterator[Metric]:
        yield from self.families
        if self.fails:
            raise RuntimeError("no connection")


def test_a_plugin_adds_its_own() -> None:
    exposition = Exposition()
    pulled = Counter("rsync_pulled_bytes", "Bytes pulled.", registry=None)
    exposition.register(pulled)
    exposition.register(Plugin(GaugeMetricFamily("rsync_lag", "Versions behind.", value=2)))
    pulled.inc(5)

    text = exposition.render().decode()
    assert samples(exposition) == {"rsync_pulled_bytes_total": 5, "rsync_lag": 2}
    assert "_created" not in text


def test_a_plugin_that_fails_costs_its_own_metrics_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exposition = Exposition()
    Counter("hotswap_things", "Things.", registry=exposition.registry)
    broken = CounterMetricFamily("b", "A value that is no number.")
    many: Any = "many"
    broken.add_metric((), many)
    exposition.register(Plugin(GaugeMetricFamily("a", "A.", value=1), fails=True))
    exposition.register(Plugin(broken))
    exposition.register(Plugin(GaugeMetricFamily("c", "C.", value=3)))
    exposition.register(Plugin(GaugeMetricFamily("hotswap_things", "Not mine.", value=9)))

    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert samples(exposition) == {"hotswap_things_total": 0, "c": 3}

    assert len(caplog.records) == 2


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_collector_that_ends_in_any_way_is_left_out_with_one_line(
    ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Ends(Collector):
        def collect(self) -> Iterator[Metric]:
            raise ENDINGS[ending]()

        def __repr__(self) -> str:
            raise ENDINGS[ending]()

    exposition = Exposition()
    exposition.register(Ends())
    exposition.register(Plugin(GaugeMetricFamily("c", "C.", value=3)))
    for _ in range(2):
        text = await anyio.to_thread.run_sync(exposition.render)
        assert text.decode().splitlines()[-1] == "c 3.0"
    [record] = caplog.records
    assert record.getMessage() == (
        "a metrics collector failed and is left out: a Ends (which cannot be shown)"
    )
    assert record.exc_info is not None


def test_labels_that_are_no_unicode_cost_no_metrics() -> None:
    """A strategy's name may be of an embedder."""
    assert BoundedLabel()("\ud800") == "\\ud800"


def test_instruments_may_be_scraped_from_another_thread() -> None:
    exposition = Exposition()
    metrics = ResponseMetrics(exposition.registry)
    stop, scrapes = threading.Event(), list[int]()

    def scrape() -> None:
        while not stop.is_set():
            scrapes.append(len(exposition.render()))

    thread = threading.Thread(target=scrape)
    thread.start()
    for number in range(3000):
        metrics.note(route=f"/r{number % 300}", method="GET", status=200)
    stop.set()
    thread.join()

    assert scrapes
    assert sum(samples(exposition).values()) == 3000
