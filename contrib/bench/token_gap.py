"""The longest wait between two streamed tokens while weights are swapped.

The decode step is the stream's median gap before the swap. Counted is the longest
gap that overlaps the swap, from the request being sent to its reply. The worst round
decides, as the target speaks of the longest gap; the note describes the median one. The
longest step of a stream that nobody swaps under is shown beside it.

* ``swap``: one request with a ``pause_mode``, sent while serving. Staging happens
  beside the stream, the server pauses for the commit alone: the longest gap may be
  ``paused_ms`` and two decode steps.
  After ``retract`` the stream's whole context is computed again, which the stream
  would not have needed: that prefill is measured (the first token of another request
  of the same length) and allowed for. After ``in_place`` there is none.
* ``client pause``: pause, update, continue, as trainers do. The stream stands still
  for as long as the client keeps it paused, staging included, so the gap is compared
  with that time instead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from contrib.bench.machine import (
    THREADS,
    describe_machine,
    warm_free_memory,
    warm_page_cache,
)
from contrib.bench.model import LARGE, checkpoint, checkpoint_bytes
from contrib.bench.results import Measure, Report, quantile
from contrib.bench.server import Arrival, Server

__all__ = ["Listener", "run"]

EXTRA_STEPS = 2.0
MODES = ("in_place", "retract")
_PROMPT = tuple(range(100, 108))
_TOKENS_BEFORE = 12
_TOKENS_AFTER = 4
_PLAIN_TOKENS = 100
_MAX_TOKENS = 512
_DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Swap:
    """One swap as its stream saw it; milliseconds."""

    step_ms: float
    gap_ms: float
    pause_ms: float
    recompute_ms: float

    @property
    def extra_steps(self) -> float:
        """The gap beyond the pause and the recomputed context, in decode steps."""
        return (self.gap_ms - self.pause_ms - self.recompute_ms) / self.step_ms


class Listener:
    """Reads one stream on a thread of its own and keeps every arrival of a new token."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._arrivals: list[Arrival] = []
        self._news = threading.Condition()
        self._error: Exception | None = None
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def await_tokens(self, count: int) -> list[Arrival]:
        """The arrivals so far, once ``count`` have come. Raises: RuntimeError."""
        with self._news:
            came = self._news.wait_for(
                lambda: len(self._arrivals) >= count or self._error is not None, _DEADLINE_S
            )
            if self._error is not None or not came:
                raise RuntimeError(
                    f"the stream gave {len(self._arrivals)} tokens, wanted {count} "
                    f"within {_DEADLINE_S:.0f} s"
                ) from self._error
            return list(self._arrivals)

    def hang_up(self) -> None:
        """Stop after the next token; the closed connection aborts the request."""
        self._enough.set()
        self._thread.join(_DEADLINE_S)

    def _listen(self) -> None:
        try:
            for arrival in self._server.stream(_PROMPT, _MAX_TOKENS):
                with self._news:
                    if not self._arrivals or arrival.tokens > self._arrivals[-1].tokens:
                        self._arrivals.append(arrival)
                        self._news.notify_all()
                if self._enough.is_set():
                    return
            raise RuntimeError("the stream ended by itself, wanted it to outlive the swap")
        except Exception as error:  # shown by whoever waits for tokens
            with self._news:
                self._error = error
                self._news.notify_all()


def run(*, rounds: int) -> Report:
    """Every way to swap under a stream, ``rounds`` times each."""
    directories = checkpoint(LARGE, "a"), checkpoint(LARGE, "b")
    warm_page_cache(*directories)
    swaps: dict[str, list[_Swap]] = {}
    with Server(directories[0], threads=THREADS, options=("--while-paused", "hold")) as server:
        server.update(directories[1])  # the first one of a process pays for its memory
        plain = _plain_steps(server)
        for mode in MODES:
            for name, way in (("swap", _swap), ("client pause", _client_pause)):
                swaps[f"{name} {mode}"] = [
                    _observe(server, directories[turn % 2], way=way, mode=mode)
                    for turn in range(rounds)
                ]
        configuration = {"machine": describe_machine(), "server": server.configuration()}
    return Report(
        name="token_gap",
        configuration={**configuration, "rounds": rounds},
        measures=[
            Measure(
                name="no swap: longest step",
                value=max(plain) / quantile(plain, 0.5),
                unit="steps",
                note=f"of {len(plain)}",
            ),
            *(one for name, seen in swaps.items() for one in _measures(name, seen)),
        ],
        samples={
            f"{name}.{figure}": [getattr(swap, figure) for swap in seen]
            for name, seen in swaps.items()
            for figure in ("step_ms", "gap_ms", "pause_ms", "recompute_ms", "extra_steps")
        },
    )


_Way = Callable[[Server, Path, str], float]


def _swap(server: Server, directory: Path, mode: str) -> float:
    """One request; returns the pause that the server admits to, in milliseconds."""
    return server.update(directory, pause_mode=mode)["paused_ms"]


def _client_pause(server: Server, directory: Path, mode: str) -> float:
    """Three requests; returns how long the client kept generation paused."""
    start = time.perf_counter()
    server.post("/pause_generation", {"mode": mode})
    server.update(directory, flush_cache=mode != "in_place")
    server.post("/continue_generation", {})
    return 1000 * (time.perf_counter() - start)


def _observe(server: Server, directory: Path, *, way: _Way, mode: str) -> _Swap:
    listener = Listener(server)
    try:
        before = listener.await_tokens(_TOKENS_BEFORE)
        warm_free_memory(checkpoint_bytes(directory))
        sent = time.perf_counter()
        pause_ms = way(server, directory, mode)
        answered = time.perf_counter()
        so_far = len(listener.await_tokens(1))
        after = listener.await_tokens(so_far + _TOKENS_AFTER)
    finally:
        listener.hang_up()
    recompute_ms = _prefill_ms(server, len(_PROMPT) + so_far) if mode == "retract" else 0.0
    step_ms = quantile([1000 * gap for _, gap in _gaps(before)], 0.5)
    during = [gap for end, gap in _gaps(after) if end >= sent and end - gap <= answered]
    return _Swap(
        step_ms=step_ms, gap_ms=1000 * max(during), pause_ms=pause_ms, recompute_ms=recompute_ms
    )


def _plain_steps(server: Server) -> list[float]:
    """Seconds between the tokens of a stream that is left alone."""
    listener = Listener(server)
    try:
        return [gap for _, gap in _gaps(listener.await_tokens(_PLAIN_TOKENS))]
    finally:
        listener.hang_up()


def _prefill_ms(server: Server, tokens: int) -> float:
    """The first token of an unseen prompt on the idle server; best of three."""
    runs = []
    for turn in range(3):
        start = time.perf_counter()
        prompt = [1000 * (turn + 1) + token for token in range(tokens)]
        for _ in server.stream(prompt, 1):
            runs.append(1000 * (time.perf_counter() - start))
            break
    return min(runs)


def _gaps(arrivals: list[Arrival]) -> list[tuple[float, float]]:
    """When each gap between two tokens ended, and how long it was; seconds."""
    return [(second.at, second.at - first.at) for first, second in pairwise(arrivals)]


def _measures(name: str, swaps: list[_Swap]) -> list[Measure]:
    ordered = sorted(swaps, key=lambda swap: swap.extra_steps)
    median, worst = ordered[len(ordered) // 2], ordered[-1]
    paused = "paused_ms" if name.startswith("swap") else "pause to continue"
    return [
        Measure(
            name=f"{name}: longest gap beyond the pause",
            value=worst.extra_steps,
            unit="steps",
            limit=EXTRA_STEPS,
            note=f"gap {median.gap_ms:.0f} ms, {paused} {median.pause_ms:.0f} ms, "
            f"recompute {median.recompute_ms:.0f} ms, decode step {median.step_ms:.0f} ms; "
            f"median of {len(swaps)}, worst {worst.extra_steps:.2f}",
        )
    ]
