"""Refuse to serve from one of several worker processes.

Each would hold its own copy of the weights, and a pause, a flush or an update
would reach one of them only.
"""

from __future__ import annotations

import multiprocessing
import os

__all__ = ["ManyWorkers", "other_workers", "refuse_many_workers"]


class ManyWorkers(RuntimeError):
    """The app was started in more than one process."""


def other_workers() -> str | None:
    """What says that this process is one of several servers, or None."""
    process = multiprocessing.current_process()
    # A hypercorn worker is a child process that was handed its whole configuration.
    config = getattr(process, "_kwargs", {}).get("config")
    workers = getattr(config, "workers", 1)
    if type(config).__module__.startswith("hypercorn") and workers > 1:
        return f"hypercorn runs {workers} workers"
    asked = os.environ.get("WEB_CONCURRENCY", "").strip()
    if asked.isdigit() and int(asked) > 1:
        return f"WEB_CONCURRENCY is {asked}"
    return None


def refuse_many_workers() -> None:
    """Raises: ManyWorkers."""
    seen = other_workers()
    if seen is not None:
        raise ManyWorkers(
            f"{seen}, wanted one: each worker would hold its own weights, and an update "
            "would reach only one of them; start several servers on ports of their own"
        )
