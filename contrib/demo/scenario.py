"""The run itself: load, four swaps, evidence, fresh servers, verdict."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from rich.console import Console

from contrib.demo.client import Client
from contrib.demo.display import Display
from contrib.demo.proof import (
    Check,
    Evidence,
    against_fresh,
    against_transformers,
    checkpoints_differ,
    collect,
    nothing_lost,
    transformers_tokens,
)
from contrib.demo.server import serving
from contrib.demo.streams import Load
from contrib.demo.summary import SwapResult, show_summary
from contrib.demo.swap import Swap, in_four_calls, in_one_call

__all__ = ["Scenario"]

STREAMS = 8


@dataclass(kw_only=True)
class Scenario:
    """Checkpoints A and B, how to serve them, and what has been seen so far.

    ``seconds`` is how long the streams run between two swaps.
    """

    a: Path
    b: Path
    dtype: str
    device: str
    seconds: float
    logs: Path
    console: Console
    swaps: list[SwapResult] = field(default_factory=list)

    async def run(self) -> bool:
        """Run it all and print the summary; whether everything held."""
        async with self._server(self.a, "live") as client:
            self._say(f"hotswap serve runs on {client.url} with {self.a} in {self.dtype}")
            first = await collect(client)
            load = await self._under_load(client)
        checks = [nothing_lost(load), checkpoints_differ(first, self._evidence("B")[0])]
        for version, directory in (("B", self.b), ("A", self.a)):
            checks += await self._proof(version, directory)
        self.console.print()
        show_summary(self.console, first=first, swaps=self.swaps, load=load, checks=checks)
        return all(check.holds for check in checks)

    async def _under_load(self, client: Client) -> Load:
        load = Load(client, STREAMS)
        with Display(self.console, client, load) as display:
            async with anyio.create_task_group() as watching:
                watching.start_soon(display.run)
                async with anyio.create_task_group() as streaming:
                    streaming.start_soon(load.run)
                    display.phase(f"{STREAMS} streams generate from A")
                    await anyio.sleep(self.seconds)
                    for swap in self._planned():
                        await self._swap(swap, client, load, display)
                    load.stop()
                    display.phase("the last requests finish")
                watching.cancel_scope.cancel()
        return load

    def _planned(self) -> Sequence[Swap]:
        four, one = "four calls", "one call"
        return [
            Swap(directory=self.b, version="B", way=in_four_calls, title=f"A to B, {four}"),
            Swap(directory=self.a, version="A", way=in_four_calls, title=f"B to A, {four}"),
            Swap(directory=self.b, version="B", way=in_one_call, title=f"A to B, {one}"),
            Swap(directory=self.a, version="A", way=in_one_call, title=f"B to A, {one}"),
        ]

    async def _swap(self, swap: Swap, client: Client, load: Load, display: Display) -> None:
        usual_gap_ms = load.median_gap_ms
        display.phase(f"swap {swap.title}")
        load.forget_gaps()
        reply = await swap.way(client, swap.directory, swap.version)
        await load.everyone_moved()
        blackout_ms = load.longest_gap_ms
        display.blackout(blackout_ms)
        evidence = await collect(client)
        load.forget_gaps()
        await anyio.sleep(self.seconds)
        self.swaps.append(
            SwapResult(
                title=swap.title,
                version=swap.version,
                reply=reply,
                usual_gap_ms=usual_gap_ms,
                blackout_ms=blackout_ms,
                evidence=evidence,
            )
        )

    async def _proof(self, version: str, directory: Path) -> list[Check]:
        """Compare what every swap to ``version`` gave with two independent loads of it."""
        self._say(f"proof: a fresh server on {directory}")
        async with self._server(directory, f"fresh-{version}") as client:
            fresh = await collect(client)
        self._say(f"proof: transformers on {directory}")
        reference = await anyio.to_thread.run_sync(
            transformers_tokens, directory, self.dtype, self.device
        )
        swapped = self._evidence(version)
        return [
            *against_fresh(version, swapped, fresh),
            against_transformers(version, swapped, reference),
        ]

    def _evidence(self, version: str) -> list[Evidence]:
        return [swap.evidence for swap in self.swaps if swap.version == version]

    def _server(self, model: Path, name: str) -> AbstractAsyncContextManager[Client]:
        return serving(model, dtype=self.dtype, device=self.device, log=self.logs / f"{name}.log")

    def _say(self, text: str) -> None:
        self.console.print(f"demo: {text}", highlight=False)
