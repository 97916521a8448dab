"""A process that decodes, and answers commands on its pipes, one at a time.

Its runs can alternate with those of another: between two commands it sleeps and takes
no CPU. A run decodes greedily for all prompts at once. The sides are hotswap's engine
(``hotswap``), ``transformers``, and :mod:`contrib.bench.generation_served`.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from contrib.bench.paths import REPOSITORY
from hotswap.engine import EmbeddedEngine
from hotswap.engine.loading import load_model
from hotswap.seams import GenerateRequest, SamplingParams

__all__ = ["SideProcess", "decoded", "environment", "joint_rate", "prompts"]

_PROMPT_TOKENS = 32
_FIRST_TOKEN = 1000
_PAGE = 128


def prompts(
    count: int, *, first: int = _FIRST_TOKEN, length: int = _PROMPT_TOKENS
) -> list[list[int]]:
    """``count`` prompts of one ``length`` that share no beginning, from token ``first`` on."""
    return [[first + 97 * n + at for at in range(length)] for n in range(count)]


def joint_rate(arrivals: Sequence[Sequence[float]]) -> float:
    """Tokens a second of all streams together, from the last one's first token to the first
    one's last; ``arrivals`` are seconds. Raises: ValueError when they never ran together."""
    start, end = max(one[0] for one in arrivals), min(one[-1] for one in arrivals)
    if end <= start:
        raise ValueError("no moment at which every stream decoded; wanted more tokens each")
    return sum(start < at <= end for one in arrivals for at in one) / (end - start)


def environment() -> dict[str, str | None]:
    """The variables that decide how threads wait and how many there are."""
    return {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")}


class SideProcess:
    """The parent's end of ``python -m MODULE ARGUMENTS``, whose first line is its configuration."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
            text=True,
        )
        self.pid = self._process.pid
        self.configuration: Mapping[str, Any] = self._reply()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()  # closes its stdin, which ends it

    def ask(self, **options: object) -> dict[str, Any]:
        """What the process answers to one command. Raises: RuntimeError when it has ended."""
        if self._process.stdin is None:
            raise RuntimeError("the process has no stdin")
        self._process.stdin.write(json.dumps(options) + "\n")
        self._process.stdin.flush()
        return self._reply()

    def arrivals(self, **options: object) -> list[list[float]]:
        """One run: when each token of each text came, in seconds of its own clock.

        Raises: RuntimeError when the process has ended.
        """
        found: list[list[float]] = self.ask(**options)["arrivals"]
        return found

    def _reply(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            self._process.communicate()  # closes its pipes
            raise RuntimeError(f"the process ended with {self._process.returncode}")
        reply: dict[str, Any] = json.loads(line)
        return reply


async def decoded(engine: EmbeddedEngine, *, batch: int, tokens: int) -> list[list[float]]:
    """When each token of ``batch`` texts came (``perf_counter``), driven from Python."""

    async def one(ids: list[int]) -> list[float]:
        sampling = SamplingParams(max_new_tokens=tokens, temperature=0.0, ignore_eos=True)
        request = GenerateRequest(rid=str(ids[0]), input_ids=ids, sampling=sampling)
        return [time.perf_counter() async for _chunk in engine.submit(request)]

    return await asyncio.gather(*map(one, prompts(batch)))


_Run = Callable[..., list[list[float]]]


def _hotswap(model: Path) -> tuple[_Run, dict[str, object]]:
    loaded = load_model(model)

    async def decode(batch: int, tokens: int) -> list[list[float]]:
        async with EmbeddedEngine(loaded, max_running_requests=batch) as engine:
            return await decoded(engine, batch=batch, tokens=tokens)

    def run(*, threads: int, batch: int, tokens: int) -> list[list[float]]:
        torch.set_num_threads(threads)  # holds for the engine's thread, which starts now
        return asyncio.run(decode(batch, tokens))

    return run, {"dtype": str(loaded.model.lm_head.weight.dtype)}


def _transformers(model: Path) -> tuple[_Run, dict[str, object]]:
    transformers: Any = import_module("transformers")
    # On a thread that ends, as hotswap does it: its OpenMP workers would slow the others.
    with ThreadPoolExecutor(1) as thread:
        load = partial(transformers.AutoModelForCausalLM.from_pretrained, model, dtype="auto")
        loaded: Any = thread.submit(load).result().eval()

    def run(*, threads: int, batch: int, tokens: int, attention: str) -> list[list[float]]:
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
        arrivals = [list(output.timestamps) for output in outputs.values()]
        if len(arrivals) != batch or any(len(one) != tokens for one in arrivals):
            counts = [len(one) for one in arrivals]
            raise RuntimeError(f"transformers gave {counts} tokens, wanted {batch} times {tokens}")
        return arrivals

    return run, {"dtype": str(loaded.dtype), "transformers": transformers.__version__}


def _serve(name: str, model: Path) -> None:
    run, configuration = {"hotswap": _hotswap, "transformers": _transformers}[name](model)
    configuration |= {"torch": torch.__version__, "env": environment()}
    print(json.dumps(configuration), flush=True)
    for line in sys.stdin:
        print(json.dumps({"arrivals": run(**json.loads(line))}), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]))
