"""What this process holds: descriptors, mapped files, threads, tasks, children, memory. Linux.

anyio keeps idle worker threads for later, and asyncio those of its executor: both are
the event loop's, and no plug-in's.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import anyio
import torch

from hotswap.uninterrupted import on_worker_thread
from hotswap.weights.memory import trim_heap

__all__ = [
    "Holdings",
    "other_loops_ended",
    "resident_bytes",
    "settled_bytes",
    "tensors_alive",
]

_OF_THE_LOOP = ("AnyIO worker thread", "asyncio_")
_LOOK_AGAIN_S = 0.01


@dataclass(frozen=True, slots=True)
class Holdings:
    """Everything that has to go back, each in words."""

    items: frozenset[str]

    @classmethod
    def now(cls) -> Holdings:
        """What is held at this moment."""
        return cls(frozenset([*_descriptors(), *_mappings(), *_threads(), *_tasks(), *_children()]))

    def __str__(self) -> str:
        return ", ".join(sorted(self.items)) or "nothing"

    def more_than(self, before: Holdings) -> Holdings:
        """What came on top of ``before``."""
        return Holdings(self.items - before.items)

    async def released(self, *, within_s: float) -> Holdings:
        """What is still held on top of this, once threads have had time to let it go.

        Nothing is collected here: what only the garbage collector would close is not closed.
        """
        deadline = time.monotonic() + within_s
        while True:
            left = Holdings.now().more_than(self)
            if not left.items or time.monotonic() >= deadline:
                return left
            # A thread that nobody waits for any more tells nobody when it ends.
            await anyio.sleep(_LOOK_AGAIN_S)


def resident_bytes() -> int:
    """Memory that is this process's own, once what lies about unused is given back."""
    trim_heap()
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem"))


async def settled_bytes(*, at_most: int, within_s: float) -> int:
    """``resident_bytes`` once it is ``at_most``, or when ``within_s`` are over.

    The threads of event loops that have ended keep what they returned last until they
    have ended too, and a thread of this one until it gets other work.
    """
    deadline = time.monotonic() + within_s
    while True:
        await on_worker_thread(int)
        found = resident_bytes()
        if found <= at_most or time.monotonic() >= deadline:
            return found
        await anyio.sleep(_LOOK_AGAIN_S)


async def other_loops_ended(*, within_s: float) -> None:
    """Wait for the worker threads of event loops that have ended, and collect what they and
    earlier tests have left; call it before any work."""
    gc.collect()
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not any(thread.name.startswith(_OF_THE_LOOP) for thread in threading.enumerate()):
            return
        await anyio.sleep(_LOOK_AGAIN_S)


def tensors_alive() -> Counter[str]:
    """How many tensors of each dtype and shape Python still holds, once garbage is collected."""
    gc.collect()
    return Counter(
        f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)}"
        for one in gc.get_objects()
        # Some objects do much when they are asked for their class.
        if issubclass(type(one), torch.Tensor)
    )


def _descriptors() -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(f"descriptor {number} ({os.readlink(f'/proc/self/fd/{number}')})")
        except FileNotFoundError:
            continue  # that of the listing itself
    return found


def _mappings() -> set[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    return {f"mapping of {path}" for path in paths if path.startswith("/") and ".so" not in path}


def _threads() -> list[str]:
    return [
        f"thread {thread.name} ({thread.ident})"
        for thread in threading.enumerate()
        if not thread.name.startswith(_OF_THE_LOOP)
    ]


def _tasks() -> list[str]:
    """Those of the event loop that runs here, if one does, which are not over."""
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return []
    return [f"task {task.get_name()} ({_what_runs(task)})" for task in tasks]


def _what_runs(task: asyncio.Task[object]) -> str:
    work = task.get_coro()
    return str(getattr(work, "__qualname__", work))


def _children() -> list[str]:
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            text = Path(f"/proc/self/task/{task}/children").read_text()
        except OSError:
            continue  # a thread that has just ended, or a kernel without the file
        found += [f"child process {pid}" for pid in text.split()]
    return found
