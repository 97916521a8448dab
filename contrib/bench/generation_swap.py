"""A swap under 32 streams: what each of them waits beyond the pause.

The server decodes 32 texts for one client, which then swaps to the other checkpoint with
one request. Of each stream the longest gap between two tokens that overlaps the swap is
taken, from the request being sent to its reply, and the stream that waited longest
counts. A decode step is the streams' median gap before. The worst round decides: the
target speaks of each stream and each swap. The same figure of as many steps that nobody
swapped under is shown beside it, as the noise of the machine.

``in_place`` adds nothing to the pause. After ``retract`` all 32 texts are computed
again, which is what the mode is: that prefill is measured (as many prompts of their
length, from their sending to the last one's first token) and allowed for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from contrib.bench.generation_models import models
from contrib.bench.generation_side import prompts
from contrib.bench.machine import THREADS, describe_machine, warm_free_memory
from contrib.bench.model import checkpoint_bytes
from contrib.bench.results import Measure, Report, quantile
from contrib.bench.server import Server
from contrib.bench.streams import Streams
from contrib.bench.turns import turns

__all__ = ["SwapSeen", "longest_gap", "run"]

EXTRA_STEPS = 2.0
MODES = ("in_place", "retract")
_STREAMS = 32
_PROMPT_TOKENS = 8
_TOKENS = 22
_SWAP_AFTER = 10
# The first steps of the streams have prompts of others in them.
_UNEVEN_STEPS = 4
_UNSEEN = 20_000
_WITHIN_S = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapSeen:
    """One swap as the streams saw it; milliseconds. ``calm_ms`` is the longest gap before."""

    step_ms: float
    calm_ms: float
    gap_ms: float
    paused_ms: float
    staged_ms: float
    recompute_ms: float

    @property
    def extra_steps(self) -> float:
        """The longest gap beyond the pause and the recomputed texts, in decode steps."""
        return (self.gap_ms - self.paused_ms - self.recompute_ms) / self.step_ms


def run(*, rounds: int) -> Report:
    """At most ``rounds`` swaps of each mode, which take turns."""
    pair = models()
    options = ("--max-running-requests", str(_STREAMS), "--weights-root", str(pair[0].parent))
    seen: dict[str, list[SwapSeen]] = {mode: [] for mode in MODES}
    with Server(pair[0], threads=THREADS, options=options) as server:
        server.update(pair[1])  # the first one of a process pays for its memory
        for _ in turns(rounds, within_s=_WITHIN_S):
            # Two modes: each round ends with the checkpoint that it began with.
            for mode, model in zip(MODES, pair, strict=True):
                warm_free_memory(checkpoint_bytes(model))
                seen[mode].append(_swap(server, model, mode=mode))
        configuration = {"machine": describe_machine(), "server": server.configuration()}
    return Report(
        name="generation_swap",
        configuration={**configuration, "rounds": len(seen[MODES[0]])},
        measures=[_measure(mode, swaps) for mode, swaps in seen.items()],
        samples={
            f"{mode}.{figure}": [getattr(swap, figure) for swap in swaps]
            for mode, swaps in seen.items()
            for figure in (*SwapSeen.__slots__, "extra_steps")
        },
    )


def longest_gap(arrivals: Sequence[Sequence[float]], start: float, end: float) -> float:
    """Of all streams, the longest time between two tokens that overlaps ``start`` to ``end``.

    Raises: ValueError when a stream has none: it was over, or had not begun.
    """
    longest = [
        max((after - before for before, after in _overlapping(one, start, end)), default=-1.0)
        for one in arrivals
    ]
    if min(longest) < 0:
        raise ValueError("a stream did not decode then; wanted all of them to outlive the swap")
    return max(longest)


def _overlapping(arrivals: Sequence[float], start: float, end: float) -> list[tuple[float, float]]:
    return [gap for gap in pairwise(arrivals) if gap[1] >= start and gap[0] <= end]


def _swap(server: Server, model: Path, *, mode: str) -> SwapSeen:
    server.post("/flush_cache", {})
    streams = Streams(server.port, prompts(_STREAMS, length=_PROMPT_TOKENS), tokens=_TOKENS)
    streams.await_tokens(_SWAP_AFTER)
    sent = time.perf_counter()
    reply = server.update(model, pause_mode=mode)
    answered = time.perf_counter()
    arrivals = streams.end()
    before = [
        after - first
        for one in arrivals
        for first, after in pairwise(one[_UNEVEN_STEPS:])
        if after < sent
    ]
    so_far = max(sum(at < answered for at in one) for one in arrivals)
    return SwapSeen(
        step_ms=1000 * quantile(before, 0.5),
        calm_ms=1000 * max(before),
        gap_ms=1000 * longest_gap(arrivals, sent, answered),
        paused_ms=reply["paused_ms"],
        staged_ms=reply["staged_ms"],
        recompute_ms=_prefill_ms(server, length=_PROMPT_TOKENS + so_far)
        if mode == "retract"
        else 0.0,
    )


def _prefill_ms(server: Server, *, length: int) -> float:
    """From prompts as long as the texts were to the last one's first token; unseen ones."""
    unseen = prompts(_STREAMS, first=_UNSEEN, length=length)
    start = time.perf_counter()
    arrivals = Streams(server.port, unseen, tokens=1).end()
    return 1000 * (max(one[0] for one in arrivals) - start)


def _measure(mode: str, swaps: Sequence[SwapSeen]) -> Measure:
    ordered = sorted(swaps, key=lambda swap: swap.extra_steps)
    median, worst = ordered[len(ordered) // 2], ordered[-1]
    calm = max(swap.calm_ms / swap.step_ms for swap in swaps)
    return Measure(
        name=f"{mode}: longest gap of {_STREAMS} streams beyond paused_ms",
        value=worst.extra_steps,
        unit="steps",
        limit=EXTRA_STEPS,
        note=f"worst of {len(swaps)}, median {median.extra_steps:.2f}: gap {median.gap_ms:.0f} ms, "
        f"paused_ms {median.paused_ms:.0f}, recompute {median.recompute_ms:.0f} ms, decode step "
        f"{median.step_ms:.0f} ms, staging {median.staged_ms:.0f} ms; without a swap the longest "
        f"step was {calm:.2f}",
    )
