"""One engine in one process, driven from Python or through its HTTP server.

What a step costs then differs by nothing but HTTP: the memory, the threads and the
moment are the same. The server is put together as ``hotswap serve`` does it, and
listens all the time. The process is a side of :mod:`contrib.bench.generation_side`: a
command makes it decode from Python, on the server's own event loop.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import cast

import anyio
import hypercorn.asyncio
import torch
from hypercorn.config import Config
from hypercorn.typing import Framework

from contrib.bench.generation_side import decoded, environment
from hotswap.controller import Controller
from hotswap.engine import EmbeddedEngine
from hotswap.http.app import create_app
from hotswap.plugins import load_plugins, resolve_strategies
from hotswap.settings import Settings

__all__: list[str] = []


async def _serve(model: Path, threads: int) -> None:
    torch.set_num_threads(threads)  # holds for the engine's thread, which starts below
    plugins, settings = load_plugins(), Settings(model=str(model))
    strategies = resolve_strategies(plugins, settings.plugin_options)
    async with EmbeddedEngine.from_directory(model) as engine:
        controller = Controller(engine, strategies=strategies, stamp=engine.stamp)
        async with controller, anyio.create_task_group() as tasks:
            app = create_app(controller, engine, settings, plugins=plugins)
            config, stop = Config(), anyio.Event()
            config.accesslog = config.errorlog = None
            taken = socket.create_server(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            # hypercorn owns and closes the descriptor that it is given.
            config.bind = [f"fd://{taken.detach()}"]

            async def listen() -> None:
                framework = cast(Framework, app)
                await hypercorn.asyncio.serve(framework, config, shutdown_trigger=stop.wait)

            tasks.start_soon(listen)
            _say({"port": port, "torch": torch.__version__, "env": environment()})
            while line := await anyio.to_thread.run_sync(sys.stdin.readline):
                asked = json.loads(line)
                arrivals = []
                if asked["batch"]:
                    arrivals = await decoded(engine, **asked)
                # The prompts are the same in every run, and are to be computed.
                await engine.flush()
                _say({"arrivals": arrivals})
            stop.set()


def _say(reply: dict[str, object]) -> None:
    print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    anyio.run(_serve, Path(sys.argv[1]), int(sys.argv[2]))
