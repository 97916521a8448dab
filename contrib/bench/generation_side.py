"""One side of ``generation``, in a process of its own: hotswap's engine or transformers.

It answers commands on its pipes, one at a time, so that the runs of the sides can
alternate; between commands it sleeps and takes no CPU. A run decodes greedily for all
prompts at once, and counts while every one of them decodes.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from contrib.bench.paths import REPOSITORY

__all__ = ["SideProcess", "joint_rate", "prompts"]

_PROMPT_TOKENS = 32
_FIRST_TOKEN = 1000
_PAGE = 128


def prompts(count: int) -> list[list[int]]:
    """``count`` prompts of one length that share no beginning."""
    return [[_FIRST_TOKEN + 97 * n + at for at in range(_PROMPT_TOKENS)] for n in range(count)]


def joint_rate(arrivals: Sequence[Sequence[float]]) -> float:
    """Tokens a second of all streams together, from the last one's first token to the first
    one's last; ``arrivals`` are seconds. Raises: ValueError when they never ran together."""
    start, end = max(one[0] for one in arrivals), min(one[-1] for one in arrivals)
    if end <= start:
        raise ValueError("no moment at which every stream decoded; wanted more tokens each")
    return sum(start < at <= end for one in arrivals for at in one) / (end - start)


class SideProcess:
    """The parent's end. ``name`` is ``hotswap`` or ``transformers``."""

    def __init__(self, name: str, model: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "contrib.bench.generation_side", name, str(model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
            env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
            text=True,
        )
        self.configuration: Mapping[str, object] = self._reply()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()  # closes its stdin, which ends it

    def tokens_per_s(self, **options: object) -> float:
        """One run with ``threads``, ``batch``, ``tokens`` and, for transformers, ``attention``."""
        if self._process.stdin is None:
            raise RuntimeError("the process has no stdin")
        self._process.stdin.write(json.dumps(options) + "\n")
        self._process.stdin.flush()
        return float(str(self._reply()["tokens_per_s"]))

    def _reply(self) -> dict[str, object]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise RuntimeError(f"the process ended with {self._process.wait()}")
        reply: dict[str, object] = json.loads(line)
        return reply


def _hotswap(model: Path) -> tuple[Callable[..., float], dict[str, object]]:
    from hotswap.engine import EmbeddedEngine
    from hotswap.engine.loading import load_model
    from hotswap.seams import GenerateRequest, SamplingParams

    loaded = load_model(model)

    async def arrivals_of(engine: EmbeddedEngine, ids: list[int], tokens: int) -> list[float]:
        sampling = SamplingParams(max_new_tokens=tokens, temperature=0.0, ignore_eos=True)
        request = GenerateRequest(rid=str(ids[0]), input_ids=ids, sampling=sampling)
        return [time.perf_counter() async for _chunk in engine.submit(request)]

    async def decode(batch: int, tokens: int) -> list[list[float]]:
        async with EmbeddedEngine(loaded, max_running_requests=batch) as engine:
            runs = [arrivals_of(engine, ids, tokens) for ids in prompts(batch)]
            return await asyncio.gather(*runs)

    def run(*, threads: int, batch: int, tokens: int) -> float:
        torch.set_num_threads(threads)  # holds for the engine's thread, which starts now
        return joint_rate(asyncio.run(decode(batch, tokens)))

    return run, {"dtype": str(loaded.model.lm_head.weight.dtype)}


def _transformers(model: Path) -> tuple[Callable[..., float], dict[str, object]]:
    transformers: Any = import_module("transformers")
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(model, dtype="auto").eval()

    def run(*, threads: int, batch: int, tokens: int, attention: str) -> float:
        torch.set_num_threads(threads)
        loaded.set_attn_implementation(attention)
        config = transformers.GenerationConfig(
            max_new_tokens=tokens, do_sample=False, eos_token_id=-1
        )
        # Left to itself it takes most of the machine's memory, and a minute for that.
        bounds = transformers.ContinuousBatchingConfig(
            page_size=_PAGE, num_blocks=4 * batch, max_batch_tokens=batch * _PAGE
        )
        with torch.inference_mode():
            outputs = loaded.generate_batch(
                prompts(batch),
                generation_config=config,
                continuous_batching_config=bounds,
                record_timestamps=True,
            )
        arrivals = [output.timestamps for output in outputs.values()]
        if len(arrivals) != batch or any(len(one) != tokens for one in arrivals):
            counts = [len(one) for one in arrivals]
            raise RuntimeError(f"transformers gave {counts} tokens, wanted {batch} times {tokens}")
        return joint_rate(arrivals)

    return run, {"dtype": str(loaded.dtype), "transformers": transformers.__version__}


def _serve(name: str, model: Path) -> None:
    run, configuration = {"hotswap": _hotswap, "transformers": _transformers}[name](model)
    configuration |= {
        "torch": torch.__version__,
        "env": {one: os.environ.get(one) for one in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")},
    }
    print(json.dumps(configuration), flush=True)
    for line in sys.stdin:
        print(json.dumps({"tokens_per_s": run(**json.loads(line))}), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]))
