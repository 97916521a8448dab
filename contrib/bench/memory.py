"""What updates do to the server's memory, descriptors and threads.

*Staging*: the peak of anonymous memory over a few 1 GB updates, and what is left
after, both against a server that has started and answered a request. *Soak*: two
hundred updates of a tiny model after twenty to warm up; what grows then leaks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from contrib.bench.machine import THREADS, describe_machine, warm_page_cache
from contrib.bench.model import LARGE, TINY, checkpoint, checkpoint_bytes
from contrib.bench.process import PeakMemory, Usage, exact_anonymous_bytes, usage
from contrib.bench.results import Measure, Report
from contrib.bench.server import Server

__all__ = ["run"]

LEFT_LIMIT_MB = 64.0
GROWTH_LIMIT_MB = 20.0
_STAGED_UPDATES = 4
_WARM_UPS = 20
_SOAK = 200
# The server keeps an idle connection for five seconds, whoever has closed it.
_SETTLE_S = 8.0
_SETTLE_LOOKS = 16
_MB = 1e6


def run(*, rounds: int) -> Report:
    """Staging and soak; ``rounds`` is the least number of 1 GB updates."""
    staging, staging_server = _staging(max(rounds, _STAGED_UPDATES))
    soak, soak_server = _soak()
    return Report(
        name="memory",
        configuration={
            "machine": describe_machine(),
            "staging_server": staging_server,
            "soak_server": soak_server,
        },
        measures=[*staging, *soak],
    )


def _staging(updates: int) -> tuple[list[Measure], dict[str, object]]:
    directories = checkpoint(LARGE, "a"), checkpoint(LARGE, "b")
    warm_page_cache(*directories)
    with Server(directories[0], threads=THREADS, options=("--load-mode", "staged")) as server:
        _generate(server)
        start = exact_anonymous_bytes(server.pid)
        with PeakMemory(server.pid) as memory:
            for turn in range(updates):
                server.update(directories[(turn + 1) % 2])
        after = exact_anonymous_bytes(server.pid)
        configuration = server.configuration()
    size = checkpoint_bytes(directories[0])
    return [
        Measure(name="staging: anonymous at the start", value=start / _MB, unit="MB"),
        Measure(
            name="staging: peak above the start",
            value=(memory.peak_bytes - start) / _MB,
            unit="MB",
            limit=size / _MB,
            note=f"one checkpoint is {size / _MB:.1f} MB; "
            f"{updates} updates, {memory.samples} samples",
        ),
        Measure(
            name="staging: left after",
            value=(after - start) / _MB,
            unit="MB",
            limit=LEFT_LIMIT_MB,
        ),
    ], configuration


def _soak() -> tuple[list[Measure], dict[str, object]]:
    directories = checkpoint(TINY, "a"), checkpoint(TINY, "b")
    with Server(directories[0], threads=THREADS) as server:
        seen: list[Usage] = []
        tasks: list[int | None] = []
        for count in (_WARM_UPS, _SOAK):
            for turn in range(count):
                server.update(directories[turn % 2])
            _generate(server)
            seen.append(_settled(server))
            tasks.append(_tasks(server))
        configuration = server.configuration()
    return _soak_measures(seen, tasks), configuration


def _soak_measures(seen: Sequence[Usage], tasks: Sequence[int | None]) -> list[Measure]:
    warm, end = seen
    name = f"soak: {{}} after {_SOAK} updates".format
    measures = [
        Measure(
            name=name("growth"),
            value=(end.anonymous_bytes - warm.anonymous_bytes) / _MB,
            unit="MB",
            limit=GROWTH_LIMIT_MB,
        ),
        Measure(
            name=name("descriptors"), value=float(end.descriptors), limit=float(warm.descriptors)
        ),
        Measure(name=name("threads"), value=float(end.threads), limit=float(warm.threads)),
    ]
    if tasks[0] is not None and tasks[1] is not None:
        measures.append(
            Measure(name=name("asyncio tasks"), value=float(tasks[1]), limit=float(tasks[0]))
        )
    return measures


def _settled(server: Server) -> Usage:
    """Usage once the last connection is gone: the fewest descriptors in a few seconds."""
    seen = []
    for _ in range(_SETTLE_LOOKS):
        seen.append(usage(server.pid))
        time.sleep(_SETTLE_S / _SETTLE_LOOKS)
    return min(seen, key=lambda one: (one.descriptors, one.threads))


def _tasks(server: Server) -> int | None:
    """How many asyncio tasks the server counts, None when it does not say."""
    count = server.get("/hotswap/v1/state").get("tasks")
    return count if isinstance(count, int) else None


def _generate(server: Server) -> None:
    server.post("/generate", {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 4}})
