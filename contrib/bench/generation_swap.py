"""A swap under 32 streams: what each of them waits beyond the pause.

The server decodes 32 texts for one client, which then swaps to the other checkpoint with
one request, and goes on until every stream has tokens from after it. Of each stream the
longest gap between two tokens that overlaps the swap is taken, from the request being sent
to its reply, and the stream that waited longest counts. A decode step is the streams'
median gap before. The worst round decides: the target speaks of each stream and each swap.

What of it is the machine's is measured in the same run. Each round has streams that nobody
swaps under, of which the longest gap is taken in the same way, from the same token on and
for as long as the swap of that round took: a figure of 1 is a machine without noise. And
for each window it is counted how much processor time went to other processes and to the
host. Neither is subtracted from anything.

``in_place`` adds nothing to the pause. After ``retract`` all 32 texts are computed
again, which is what the mode is: that prefill is measured (as many prompts of their
length, from their sending to the last one's first token) and allowed for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from contrib.bench.generation_models import models
from contrib.bench.generation_side import prompts
from contrib.bench.machine import THREADS, describe_machine, warm_free_memory
from contrib.bench.model import checkpoint_bytes
from contrib.bench.neighbours import Moment
from contrib.bench.results import Measure, Report, quantile
from contrib.bench.server import Server
from contrib.bench.streams import Streams
from contrib.bench.turns import turns

__all__ = ["SwapSeen", "longest_gap", "run", "widest"]

EXTRA_STEPS = 2.0
MODES = ("in_place", "retract")
NOBODY = "no swap"
_STREAMS = 32
_PROMPT_TOKENS = 8
# More than a stream gets: all are cut once each has some from after the swap.
_TOKENS = 1000
_TOKENS_AFTER = 2
_SWAP_AFTER = 10
# The first steps of the streams have prompts of others in them.
_UNEVEN_STEPS = 4
_UNSEEN = 20_000
_WITHIN_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapSeen:
    """One swap, or as long a time without one, as the streams saw it; milliseconds.

    ``gap_at_ms`` is when the longest gap began, from the request on; ``others_ms`` the
    processor time that others had from the request to the reply.
    """

    step_ms: float
    gap_ms: float
    gap_at_ms: float
    window_ms: float
    others_ms: float
    paused_ms: float = 0.0
    staged_ms: float = 0.0
    recompute_ms: float = 0.0

    @property
    def extra_steps(self) -> float:
        """The longest gap beyond the pause and the recomputed texts, in decode steps."""
        return (self.gap_ms - self.paused_ms - self.recompute_ms) / self.step_ms


def run(*, rounds: int) -> Report:
    """At most ``rounds`` swaps of each mode and as many times without one, which take turns."""
    pair = models()
    options = ("--max-running-requests", str(_STREAMS), "--weights-root", str(pair[0].parent))
    seen: dict[str, list[SwapSeen]] = {way: [] for way in (*MODES, NOBODY)}
    with Server(pair[0], threads=THREADS, options=options) as server:
        server.update(pair[1])  # the first one of a process pays for its memory
        for _ in turns(rounds, within_s=_WITHIN_S):
            # Two modes: each round ends with the checkpoint that it began with.
            for mode, model in zip(MODES, pair, strict=True):
                warm_free_memory(checkpoint_bytes(model))
                seen[mode].append(_swap(server, model, mode=mode))
            seen[NOBODY].append(_left_alone(server, window_ms=seen[MODES[0]][-1].window_ms))
        configuration = {"machine": describe_machine(), "server": server.configuration()}
    return Report(
        name="generation_swap",
        configuration={**configuration, "rounds": len(seen[NOBODY])},
        measures=[*(_measure(mode, seen[mode]) for mode in MODES), _noise(seen[NOBODY])],
        samples={
            f"{way}.{figure}": [getattr(swap, figure) for swap in swaps]
            for way, swaps in seen.items()
            for figure in (*SwapSeen.__slots__, "extra_steps")
        },
    )


def longest_gap(arrivals: Sequence[Sequence[float]], start: float, end: float) -> float:
    """How long ``widest`` is. Raises: as ``widest``."""
    before, after = widest(arrivals, start, end)
    return after - before


def widest(arrivals: Sequence[Sequence[float]], start: float, end: float) -> tuple[float, float]:
    """Of all streams, the longest time between two tokens that overlaps ``start`` to ``end``.

    Raises: ValueError when a stream had not begun, or has no token from after ``end``.
    """
    if not all(one and one[0] <= start and one[-1] > end for one in arrivals):
        raise ValueError("a stream did not decode then; wanted all of them to outlive the swap")
    gaps = [gap for one in arrivals for gap in _overlapping(one, start, end)]
    return max(gaps, key=lambda gap: gap[1] - gap[0])


def _overlapping(arrivals: Sequence[float], start: float, end: float) -> list[tuple[float, float]]:
    return [gap for gap in pairwise(arrivals) if gap[1] >= start and gap[0] <= end]


class _Watched:
    """Streams that decode, and a window from now on whose longest gap is looked for."""

    def __init__(self, server: Server) -> None:
        _await_idle(server)
        server.post("/flush_cache", {})
        self._pid = server.pid
        self._streams = Streams(
            server.port, prompts(_STREAMS, length=_PROMPT_TOKENS), tokens=_TOKENS
        )
        self._streams.await_tokens(_SWAP_AFTER)
        self._before = Moment.now(self._pid)
        self._start = time.perf_counter()

    def __repr__(self) -> str:
        return f"<_Watched {self._streams!r}>"

    def close(self) -> tuple[SwapSeen, int]:
        """What was seen up to now, and the most tokens of one. Ends the streams."""
        end = time.perf_counter()
        others_s = Moment.now(self._pid).others_s(self._before)
        self._streams.await_tokens(self._streams.most + _TOKENS_AFTER)
        arrivals = self._streams.cut()
        steps = [
            after - first
            for one in arrivals
            for first, after in pairwise(one[_UNEVEN_STEPS:])
            if after < self._start
        ]
        gap = widest(arrivals, self._start, end)
        seen = SwapSeen(
            step_ms=1000 * quantile(steps, 0.5),
            gap_ms=1000 * (gap[1] - gap[0]),
            gap_at_ms=1000 * (gap[0] - self._start),
            window_ms=1000 * (end - self._start),
            others_ms=1000 * others_s,
        )
        return seen, max(sum(at < end for at in one) for one in arrivals)


def _swap(server: Server, model: Path, *, mode: str) -> SwapSeen:
    watched = _Watched(server)
    reply = server.update(model, pause_mode=mode)
    seen, so_far = watched.close()
    length = _PROMPT_TOKENS + so_far
    return replace(
        seen,
        paused_ms=reply["paused_ms"],
        staged_ms=reply["staged_ms"],
        recompute_ms=_prefill_ms(server, length=length) if mode == "retract" else 0.0,
    )


def _left_alone(server: Server, *, window_ms: float) -> SwapSeen:
    """As ``_swap``, and nobody swaps."""
    watched = _Watched(server)
    # Not a wait for anything: the window itself, in which the streams alone are at work.
    time.sleep(window_ms / 1000)
    return watched.close()[0]


def _await_idle(server: Server) -> None:
    """Until the engine has let go of the streams that were cut."""
    while not _is_idle(server):
        # Polling another process, which is to have the cores: there is no event of ours for it.
        time.sleep(0.05)


def _is_idle(server: Server) -> bool:
    status = server.get("/status")
    in_flight = status["in_flight"]
    # A request is over for its client before the engine knows, between two passes.
    engine_has = any(in_flight.values()) if isinstance(in_flight, dict) else True
    return not (status["http_requests"] or engine_has)


def _prefill_ms(server: Server, *, length: int) -> float:
    """From prompts as long as the texts were to the last one's first token; unseen ones."""
    _await_idle(server)
    unseen = prompts(_STREAMS, first=_UNSEEN, length=length)
    start = time.perf_counter()
    arrivals = Streams(server.port, unseen, tokens=1).end()
    return 1000 * (max(one[0] for one in arrivals) - start)


def _measure(mode: str, swaps: Sequence[SwapSeen]) -> Measure:
    ordered = sorted(swaps, key=lambda swap: swap.extra_steps)
    worst = ordered[-1]
    return Measure(
        name=f"{mode}: longest gap of {_STREAMS} streams beyond paused_ms",
        value=worst.extra_steps,
        unit="steps",
        limit=EXTRA_STEPS,
        note=f"worst of {_figures(ordered)}; the worst: {_told(worst)}, {_place(worst)}",
    )


def _noise(alone: Sequence[SwapSeen]) -> Measure:
    ordered = sorted(alone, key=lambda one: one.extra_steps)
    return Measure(
        name=f"{NOBODY}: longest gap of {_STREAMS} streams in as long a time",
        value=ordered[-1].extra_steps,
        unit="steps",
        note=f"worst of {_figures(ordered)}; the worst: {_told(ordered[-1])}",
    )


def _figures(ordered: Sequence[SwapSeen]) -> str:
    shown = " ".join(f"{swap.extra_steps:.2f}" for swap in ordered)
    others = quantile([swap.others_ms / swap.window_ms for swap in ordered], 0.5)
    return f"{shown} (others had {others:.2f} cores)"


def _told(swap: SwapSeen) -> str:
    recomputed = f", recompute {swap.recompute_ms:.0f} ms" if swap.recompute_ms else ""
    return (
        f"gap {swap.gap_ms:.0f} ms, paused_ms {swap.paused_ms:.0f}{recomputed}, decode step "
        f"{swap.step_ms:.0f} ms, staging {swap.staged_ms:.0f} ms, others had "
        f"{swap.others_ms / swap.window_ms:.2f} cores"
    )


def _place(swap: SwapSeen) -> str:
    """Which step it was: one beside staging ends before the pause begins."""
    began_ms = swap.gap_at_ms
    return "beside staging" if began_ms + swap.gap_ms < swap.staged_ms else "across the pause"
