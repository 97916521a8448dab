"""The real app, controller and embedded engine in the test's own event loop.

For what a server in another process cannot be made to do: fail at a chosen tensor,
stand still at a chosen moment.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anyio
import hypercorn.asyncio
import torch
from hotswap_disk import DiskStrategy
from hypercorn.config import Config
from hypercorn.typing import Framework
from starlette.applications import Starlette

from hotswap.controller import Controller
from hotswap.engine import EmbeddedEngine
from hotswap.engine.batch import Work, make_batch
from hotswap.engine.kv import KvCache, KvShape
from hotswap.engine.loading import LoadedModel, load_model
from hotswap.engine.model import CausalLm
from hotswap.http import create_app
from hotswap.http.dialect import paused_policy
from hotswap.plugins import Plugins
from hotswap.seams import LoadStrategy
from hotswap.serve import take_port
from hotswap.settings import Settings
from tests.process.http_client import LIMIT_S, Client, client_of

__all__ = ["InProcess", "listening", "load", "logits_of", "serving"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcess:
    """One server without a process of its own."""

    engine: EmbeddedEngine
    controller: Controller
    app: Starlette
    client: Client


def load(directory: Path, **options: Any) -> LoadedModel:
    """A model and its target; ``options`` are those of ``load_model``."""
    return load_model(directory, **({"device": "cpu"} | options))


@asynccontextmanager
async def serving(
    loaded: LoadedModel,
    *,
    strategies: Mapping[str, LoadStrategy] | None = None,
    engine: type[EmbeddedEngine] = EmbeddedEngine,
    **settings: Any,
) -> AsyncIterator[InProcess]:
    """Serve ``loaded`` on a free loopback port until the block ends."""
    told = Settings(allow_weight_update=True, **settings)
    known = {"disk": DiskStrategy(), **(strategies or {})}
    async with (
        engine(
            loaded,
            max_running_requests=told.max_running_requests,
            max_queued=told.max_queued_requests,
            chunked_prefill_size=told.chunked_prefill_size,
            max_total_tokens=told.max_total_tokens or None,
            mem_fraction_static=told.mem_fraction_static,
        ) as runs,
        Controller(
            runs, strategies=known, stamp=runs.stamp, while_paused=paused_policy(told)
        ) as controller,
    ):
        plugins = Plugins(strategies=dict.fromkeys(known, _made_already))
        app = create_app(controller, runs, told, plugins=plugins, strategies=known)
        async with listening(app) as url, client_of(url) as client:
            yield InProcess(engine=runs, controller=controller, app=app, client=client)


def _made_already(_options: Mapping[str, object]) -> LoadStrategy:
    raise AssertionError("the controller has its strategies already")


@asynccontextmanager
async def listening(app: Starlette) -> AsyncIterator[str]:
    """Run ``app`` under hypercorn in this event loop; yields its URL."""
    taken = take_port("127.0.0.1", 0)
    config = Config()
    config.bind = [f"fd://{os.dup(taken.fileno())}"]
    config.accesslog = None
    config.loglevel = "WARNING"
    config.graceful_timeout = 1.0
    listens, stop = anyio.Event(), anyio.Event()

    async def trigger() -> None:
        listens.set()
        await stop.wait()

    async def run() -> None:
        await hypercorn.asyncio.serve(
            cast(Framework, app), config, shutdown_trigger=trigger, mode="asgi"
        )

    with taken:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            with anyio.fail_after(LIMIT_S):
                await listens.wait()
            try:
                yield f"http://127.0.0.1:{taken.getsockname()[1]}"
            finally:
                stop.set()


def logits_of(model: CausalLm, input_ids: list[int]) -> torch.Tensor:
    """``[tokens x vocabulary]`` float32, of a model that nothing else uses now."""
    config, weight = model.config, model.lm_head.weight
    shape = KvShape(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=weight.dtype,
        device=weight.device,
    )
    work = Work(kv=KvCache(shape), tokens=input_ids, prompt_length=len(input_ids))
    with torch.inference_mode():
        logits: torch.Tensor = model(make_batch([work], weight.device), every_row=True)
    return logits.cpu()
