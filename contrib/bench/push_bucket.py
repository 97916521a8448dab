"""A push as trainers for SGLang send it, against ``copy_`` of as many bytes.

The payload is one flattened bucket with all of the weights, which lies ready in shared memory:
base64 of a pickle in JSON, over HTTP, decoded and checked. A server of each load mode gets it;
rounds follow each other, so that whatever else the machine does hits both sides alike.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import httpx
from safetensors.torch import load_file

from contrib.bench.baseline import BaselineProcess
from contrib.bench.machine import THREADS, describe_machine
from contrib.bench.model import LARGE, checkpoint
from contrib.bench.results import Measure, Report, best, ratio_of_bests
from contrib.bench.server import Server
from hotswap.wire import flattened_bucket

__all__ = ["LIMIT", "run"]

LIMIT = 1 / 0.4
_MODES = ("staged", "direct")
_PATH = "/update_weights_from_tensor"


@dataclass(slots=True)
class _Rounds:
    """Milliseconds of every round of one load mode."""

    copy_ms: list[float] = field(default_factory=list)
    push_ms: list[float] = field(default_factory=list)
    paused_ms: list[float] = field(default_factory=list)


def run(*, rounds: int) -> Report:
    """``rounds`` of copy and push for each load mode, after one that is not counted."""
    directories = checkpoint(LARGE, "a"), checkpoint(LARGE, "b")
    tensors = load_file(directories[1] / "model.safetensors")
    seen: dict[str, _Rounds] = {}
    servers: dict[str, object] = {}
    with (
        BaselineProcess(directories, threads=THREADS) as baseline,
        flattened_bucket(tensors.items()) as payload,
    ):
        for mode in _MODES:
            options = ("--load-mode", mode)
            with Server(directories[0], threads=THREADS, options=options) as server:
                servers[f"{mode}_server"] = server.configuration()
                seen[mode] = _measure(baseline, server.port, payload, rounds=rounds)
    return Report(
        name="push_bucket",
        configuration={
            "machine": describe_machine(),
            **servers,
            "bytes": sum(tensor.nbytes for tensor in tensors.values()),
            "tensors": len(tensors),
            "payload_characters": len(payload),
            "rounds": rounds,
        },
        measures=[one for mode, figures in seen.items() for one in _measures(mode, figures)],
        samples={
            f"{mode}.{name}": getattr(figures, name)
            for mode, figures in seen.items()
            for name in ("copy_ms", "push_ms", "paused_ms")
        },
    )


def _measure(baseline: BaselineProcess, port: int, payload: str, *, rounds: int) -> _Rounds:
    body = {
        "serialized_named_tensors": [payload],
        "load_format": "flattened_bucket",
        "scope": "full",
    }
    figures = _Rounds()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=120.0) as http:
        for turn in range(rounds + 1):
            copied_s = baseline.copy().total_s
            started = time.perf_counter()
            reply = http.post(_PATH, json=body)
            took_s = time.perf_counter() - started
            if reply.status_code != 200:
                raise RuntimeError(f"the push was answered with {reply.text:.300}")
            if not turn:
                continue  # the first one of each process pays for its memory
            figures.copy_ms.append(1000 * copied_s)
            figures.push_ms.append(1000 * took_s)
            figures.paused_ms.append(reply.json()["paused_ms"])
    return figures


def _measures(mode: str, seen: _Rounds) -> list[Measure]:
    return [
        best(f"{mode}: copy_", seen.copy_ms),
        best(f"{mode}: paused", seen.paused_ms),
        best(f"{mode}: push", seen.push_ms),
        ratio_of_bests(f"{mode}: push / copy_", seen.push_ms, seen.copy_ms, limit=LIMIT),
    ]
