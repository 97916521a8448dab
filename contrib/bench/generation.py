"""Decoding at batch 8: hotswap's engine, transformers' continuous batching, and HTTP.

* ``engine``: greedy decoding of eight prompts, tokens a second while all of them decode.
  Each side runs with one thread and with two, transformers with both of its paged
  attentions; the best of each side is compared.
* ``http``: eight streams of a server against the engine driven from Python, with as many
  threads. The client takes its time from the same cores.
* ``streams``: 32 streams of a server, and a swap from one checkpoint to the other with
  ``pause_mode`` ``in_place``. Of each stream the longest gap that overlaps the swap; the
  stream that waited longest counts. The median round decides.

The rounds alternate. The model is SmolLM2-135M in bfloat16, the demo's.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from contrib.bench.generation_side import SideProcess, joint_rate, prompts
from contrib.bench.machine import THREADS, describe_machine, warm_page_cache
from contrib.bench.paths import REPOSITORY
from contrib.bench.results import Measure, Report, quantile, spread
from contrib.bench.server import Server

__all__ = ["run"]

WANTED_SPEEDUP = 1.2
HTTP_OVERHEAD = 0.10
EXTRA_STEPS = 2.0
_BATCH = 8
_TOKENS = 32
_STREAMS = 32
_SWAP_TOKENS = 24
_SWAP_AFTER = 6
_ATTENTIONS = ("sdpa", "paged|eager")
_DEADLINE_S = 300.0


class _Streams:
    """Streams of one server, each read on a thread of its own; ``arrivals`` in seconds."""

    def __init__(self, server: Server, *, count: int, tokens: int) -> None:
        self.arrivals: list[list[float]] = [[] for _ in range(count)]
        self._server, self._tokens = server, tokens
        self._errors: list[Exception] = []
        self._news = threading.Condition()
        self._threads = [
            threading.Thread(target=self._read, args=(prompt, kept), daemon=True)
            for prompt, kept in zip(prompts(count), self.arrivals, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def await_tokens(self, count: int) -> None:
        """Until every stream has ``count`` tokens. Raises: RuntimeError."""
        with self._news:
            came = self._news.wait_for(
                lambda: self._errors or all(len(one) >= count for one in self.arrivals),
                _DEADLINE_S,
            )
        if self._errors or not came:
            seen = [len(one) for one in self.arrivals]
            raise RuntimeError(f"the streams gave {seen} tokens, wanted {count} each") from next(
                iter(self._errors), None
            )

    def end(self) -> list[list[float]]:
        """All arrivals, once every stream has ended. Raises: RuntimeError."""
        self.await_tokens(self._tokens)
        for thread in self._threads:
            thread.join(_DEADLINE_S)
        return self.arrivals

    def _read(self, prompt: Sequence[int], kept: list[float]) -> None:
        try:
            tokens = 0
            for arrival in self._server.stream(prompt, self._tokens):
                with self._news:
                    # Several tokens may come in one chunk; the last chunk may bring none.
                    kept.extend([arrival.at] * (arrival.tokens - tokens))
                    tokens = arrival.tokens
                    self._news.notify_all()
        except Exception as error:  # shown by whoever waits for tokens
            with self._news:
                self._errors.append(error)
                self._news.notify_all()


def run(*, rounds: int) -> Report:
    """Every comparison, ``rounds`` times."""
    models = _models()
    warm_page_cache(*models)
    rates, configuration = _engines(models[0], rounds=rounds)
    ours = max((name for name in rates if name[0] == "hotswap"), key=lambda n: max(rates[n]))
    theirs = max((name for name in rates if name[0] != "hotswap"), key=lambda n: max(rates[n]))
    direct, http, http_configuration = _http(models[0], threads=int(ours[1]), rounds=rounds)
    swaps, streams_configuration = _swaps(models, rounds=rounds)
    return Report(
        name="generation",
        configuration={
            "machine": describe_machine(),
            **configuration,
            "http": http_configuration,
            "streams": streams_configuration,
            "rounds": rounds,
        },
        measures=[
            Measure(
                name="engine: time a token, of transformers'",
                value=max(rates[theirs]) / max(rates[ours]),
                unit="x",
                limit=1 / WANTED_SPEEDUP,
                note=f"{_shown(ours, rates)}; {_shown(theirs, rates)}: "
                f"{max(rates[ours]) / max(rates[theirs]):.2f} times as fast",
            ),
            Measure(
                name="http: time a token beyond the engine's",
                value=max(direct) / max(http) - 1,
                unit="x",
                limit=HTTP_OVERHEAD,
                note=f"{max(http):.1f} against {max(direct):.1f} tokens/s, best of {rounds}",
            ),
            Measure(
                name=f"swap under {_STREAMS} streams: longest gap beyond paused_ms",
                value=quantile(swaps, 0.5),
                unit="steps",
                limit=EXTRA_STEPS,
                note=f"of the stream that waited longest; worst round {max(swaps):.2f}",
            ),
        ],
        samples={
            **{" ".join(name): samples for name, samples in rates.items()},
            "http.direct": direct,
            "http.http": http,
            "streams.extra_steps": swaps,
        },
    )


_Rates = dict[tuple[str, ...], list[float]]


def _engines(model: Path, *, rounds: int) -> tuple[_Rates, dict[str, object]]:
    """Tokens a second of every side, number of threads and attention."""
    rates: _Rates = {}
    with SideProcess("hotswap", model) as ours, SideProcess("transformers", model) as theirs:
        for _ in range(rounds):
            for threads in sorted({1, THREADS}):
                how = {"threads": threads, "batch": _BATCH, "tokens": _TOKENS}
                mine = rates.setdefault(("hotswap", str(threads)), [])
                mine.append(ours.tokens_per_s(**how))
                for attention in _ATTENTIONS:
                    one = rates.setdefault(("transformers", str(threads), attention), [])
                    one.append(theirs.tokens_per_s(**how, attention=attention))
        return rates, {"hotswap": ours.configuration, "transformers": theirs.configuration}


def _http(
    model: Path, *, threads: int, rounds: int
) -> tuple[list[float], list[float], dict[str, object]]:
    """Tokens a second of the engine alone and through the server, taking turns."""
    direct, http = [], []
    with SideProcess("hotswap", model) as engine, Server(model, threads=threads) as server:
        for _ in range(rounds):
            how = {"threads": threads, "batch": _BATCH, "tokens": _TOKENS}
            direct.append(engine.tokens_per_s(**how))
            http.append(joint_rate(_Streams(server, count=_BATCH, tokens=_TOKENS).end()))
            server.post("/flush_cache", {})  # the prompts are the same in every round
        return direct, http, server.configuration()


def _swaps(models: tuple[Path, Path], *, rounds: int) -> tuple[list[float], dict[str, object]]:
    """Steps beyond the pause of the stream that waited longest, for each round."""
    options = ("--max-running-requests", str(_STREAMS), "--weights-root", str(models[0].parent))
    with Server(models[0], threads=THREADS, options=options) as server:
        server.update(models[1])  # the first one of a process pays for its memory
        seen = [_swap(server, models[turn % 2]) for turn in range(rounds)]
        return seen, server.configuration()


def _swap(server: Server, model: Path) -> float:
    server.post("/flush_cache", {})
    streams = _Streams(server, count=_STREAMS, tokens=_SWAP_TOKENS)
    streams.await_tokens(_SWAP_AFTER)
    sent = time.perf_counter()
    paused_s = server.update(model, pause_mode="in_place")["paused_ms"] / 1000
    answered = time.perf_counter()
    arrivals = streams.end()
    step_s = quantile([b - a for one in arrivals for a, b in pairwise(one) if b < sent], 0.5)
    longest = max(
        b - a for one in arrivals for a, b in pairwise(one) if b >= sent and a <= answered
    )
    return (longest - paused_s) / step_s


def _models() -> tuple[Path, Path]:
    """The demo's two checkpoints, made when absent."""
    folder = REPOSITORY / ".demo"
    subprocess.run(
        [sys.executable, "-m", "contrib.demo", "--prepare"],
        cwd=REPOSITORY,
        check=True,
        stdout=sys.stderr,
    )
    return folder / "A", folder / "B"


def _shown(name: tuple[str, ...], rates: _Rates) -> str:
    side, threads, *attention = name
    how = ", ".join([f"{threads} threads", *attention])
    times = [1 / rate for rate in rates[name]]
    return f"{side} {max(rates[name]):.1f} tokens/s ({how}; spread {spread(times):.0%})"
