"""What a server shows of itself while it runs: metrics and events of one app.

State changes come from ``machine.observe`` and steps of updates from
``observe_updates``; nothing else in here looks for either.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from hotswap.events import (
    EventLog,
    publish_change,
    publish_follow,
    publish_pull,
    publish_update,
)
from hotswap.metrics import (
    Exposition,
    PullMetrics,
    RequestMetrics,
    ResponseMetrics,
    ServerGauges,
    UpdateMetrics,
)
from hotswap.metrics.follow import follow_numbers
from hotswap.sparse.cache import PATCHES
from hotswap.state import State
from hotswap.types import EngineLoad, InFlightCounts, WeightStamp

if TYPE_CHECKING:
    from hotswap.http.served import Served

__all__ = ["Observation"]


class Observation:
    """Metrics and events of one app. ``exposition.register`` is where plug-ins add theirs."""

    def __init__(self, served: Served) -> None:
        self.exposition: Exposition = Exposition()
        self.events: EventLog = EventLog()
        registry = self.exposition.registry
        self.requests: RequestMetrics = RequestMetrics(registry)
        self.responses: ResponseMetrics = ResponseMetrics(registry)
        updates = UpdateMetrics(registry)
        registry.register(ServerGauges(_Live(served, self.events)))
        for collector in served.plugins.metrics:
            self.exposition.register(collector)
        machine = served.commands.machine
        machine.observe(updates.note_change)
        machine.observe(partial(publish_change, self.events))
        served.commands.observe_updates(updates.note_update)
        served.commands.observe_updates(partial(publish_update, self.events))
        served.puller.observe(PullMetrics(registry).note_pull)
        served.puller.observe(partial(publish_pull, self.events))
        if served.follower is not None:
            served.follower.observe(partial(publish_follow, self.events))

    def __repr__(self) -> str:
        return f"<Observation {self.events!r}>"

    def begin_shutdown(self) -> None:
        """Tell watchers; from now on an abort is the shutdown's."""
        if not self.requests.closing:
            self.requests.closing = True
            self.events.publish("shutting_down", {})


class _Live:
    """What the gauges read, of one app."""

    def __init__(self, served: Served, events: EventLog) -> None:
        self._served = served
        self._events = events

    @property
    def state(self) -> State:
        return self._served.commands.machine.state

    @property
    def stamp(self) -> WeightStamp:
        return self._served.commands.stamp

    @property
    def in_flight(self) -> InFlightCounts:
        return self._served.engine.in_flight

    @property
    def numbers(self) -> Iterator[tuple[str, str, float]]:
        served = self._served
        yield (
            "hotswap_http_generation_requests",
            "Generation requests between their arrival and their last byte.",
            len(served.requests),
        )
        yield (
            "hotswap_updates_in_progress",
            "Updates that are not over.",
            len(served.commands.updates),
        )
        yield "hotswap_patch_cache_bytes", "Bytes of what pulls have changed.", PATCHES.size_bytes
        yield "hotswap_patch_cache_patches", "Pulls whose changes are kept.", len(PATCHES)
        logs = served.puller.logs
        yield "hotswap_log_versions", "Versions in the longest log of a pulled copy.", logs.versions
        yield "hotswap_log_bytes", "Bytes of all logs beside pulled copies.", logs.size_bytes
        yield "hotswap_event_readers", "Readers of events.", self._events.readers
        yield "hotswap_engine_alive", "1 while forward passes are possible.", served.engine_alive
        if served.follower is not None:
            yield from follow_numbers(served.follower.status)
        load = getattr(served.engine, "load", None)
        if isinstance(load, EngineLoad):
            yield from _load(load)
        cache = getattr(served.engine, "cache_stats", None)
        if cache is not None:
            yield "hotswap_prefix_cache_entries", "Cached prefixes.", cache.entries
            yield "hotswap_prefix_cache_bytes", "Bytes of cached prefixes.", cache.size_bytes


def _load(load: EngineLoad) -> Iterator[tuple[str, str, float]]:
    yield "hotswap_requests_stalled", "Waiting for a client that does not read.", load.stalled
    yield "hotswap_requests_running_limit", "Most requests in a pass.", load.max_running
    yield "hotswap_requests_waiting_limit", "Most requests that may wait.", load.max_queued
    yield "hotswap_kv_tokens_used", "Tokens whose keys and values are held.", load.kv_tokens_used
    yield "hotswap_kv_tokens_limit", "Tokens whose keys and values fit.", load.kv_tokens_total
    yield "hotswap_prefill_tokens_total", "Tokens computed to start texts.", load.prefill_tokens
    yield "hotswap_retractions_total", "Requests that lost keys and values.", load.retractions
