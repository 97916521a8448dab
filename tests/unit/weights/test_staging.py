"""Staging: on worker threads, cancellable, with nothing left behind."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from functools import partial

import anyio
import anyio.to_thread
import pytest
import torch

from hotswap.testing.holdings import resident_bytes
from hotswap.testing.module_engine import HeldPieces, HeldTensor
from hotswap.types import TensorSpec
from hotswap.weights.staging import MAX_WORKERS, Staging, run_jobs


def spec(name: str, *shape: int, dtype: torch.dtype = torch.bfloat16) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


async def test_payloads_of_every_kind_are_copied_and_cast() -> None:
    specs = {name: spec(name, 3, 5) for name in "abc"}
    sources = {name: torch.randn(3, 5) for name in "abc"}
    staging = Staging(specs.values())
    await staging.fill([("a", sources["a"]), ("b", HeldTensor("b", sources["b"]))], specs)
    await staging.fill([("c", HeldPieces("c", sources["c"]))], specs)
    assert repr(staging) == "<Staging 3 tensors, 192 bytes>"
    wanted = {name: tensor.to(torch.bfloat16) for name, tensor in sources.items()}
    for tensor in sources.values():
        tensor.fill_(0)
    for name, tensor in wanted.items():
        assert torch.equal(staging.tensors[name], tensor)
    staging.close()
    assert staging.tensors == {}
    staging.close()


async def test_unequal_names_are_found_and_copies_forgotten() -> None:
    specs = {name: spec(name, 4, dtype=torch.float32) for name in "abc"}
    staging = Staging(specs.values())
    await staging.fill([(name, torch.ones(4)) for name in "ab"] + [("c", torch.zeros(4))], specs)
    assert await staging.unequal("a", ["b", "c"]) == ["c"]
    staging.forget(["b"])
    assert set(staging.tensors) == {"a", "c"}
    staging.close()


async def test_what_is_forgotten_gives_its_memory_back_and_nothing_else() -> None:
    count = 2**20
    specs = {name: spec(name, count, dtype=torch.float32) for name in "abc"}
    staging = Staging(specs.values())
    await staging.fill([(name, torch.ones(count)) for name in "abc"], specs)
    before = resident_bytes()
    staging.forget(["b"])
    assert before - resident_bytes() > 3.5 * count
    assert all(tensor.sum() == count for tensor in staging.tensors.values())
    staging.close()


async def test_jobs_run_off_the_event_loop_and_never_more_than_allowed() -> None:
    lock, running, most, threads = threading.Lock(), [0], [0], set[int]()
    both = threading.Barrier(min(2, MAX_WORKERS), timeout=30)

    def job(at: int) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
            threads.add(threading.get_ident())
        if at < both.parties:
            both.wait()  # two at once, or a timeout
        with lock:
            running[0] -= 1

    await run_jobs([partial(job, at) for at in range(64)])
    assert threading.get_ident() not in threads
    assert both.parties <= most[0] <= MAX_WORKERS <= 4


@pytest.mark.skipif(sys.platform != "linux", reason="niceness of a thread is Linux's own")
async def test_staging_threads_give_way_and_nobody_else_does() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    seen: list[int] = []

    await run_jobs([lambda: seen.append(os.getpriority(os.PRIO_PROCESS, 0))])

    assert seen == [min(before + 10, 19)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
    assert await anyio.to_thread.run_sync(os.getpriority, os.PRIO_PROCESS, 0) == before


async def test_the_first_error_stops_the_rest() -> None:
    done: list[int] = []

    def job(at: int) -> None:
        if at == 3:
            raise OSError("disk gone")
        done.append(at)

    with pytest.raises(OSError, match="disk gone"):
        await run_jobs([partial(job, at) for at in range(10_000)])
    assert len(done) < 10_000


@pytest.mark.parametrize(
    "kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, BaseException]
)
async def test_what_ends_a_thread_in_any_way_is_an_error(kind: type[BaseException]) -> None:
    """Memory that nobody filled must not be taken for staged."""

    def job() -> None:
        raise kind("enough")

    with pytest.raises(RuntimeError, match=f"ended its reading with {kind.__name__}: enough"):
        await run_jobs([job])


async def test_no_jobs_are_no_work() -> None:
    await run_jobs([])


async def test_cancelling_stops_between_jobs_and_leaves_no_thread_at_work() -> None:
    started, release = threading.Event(), threading.Event()
    done: list[int] = []

    def job(at: int) -> None:
        started.set()
        assert release.wait(30)
        done.append(at)

    async with anyio.create_task_group() as group:
        group.start_soon(run_jobs, [partial(job, at) for at in range(1000)])
        await anyio.to_thread.run_sync(started.wait, 30)
        group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await anyio.wait_all_tasks_blocked()  # it knows, and waits for its threads
        release.set()
    finished = list(done)
    assert len(finished) <= MAX_WORKERS
    await anyio.to_thread.run_sync(lambda: None)
    assert done == finished


async def test_a_closed_staging_holds_nothing() -> None:
    specs = {"a": spec("a", 4)}
    staging = Staging(specs.values())
    staging.close()
    with pytest.raises(ValueError, match="closed"):
        await staging.fill([("a", torch.ones(4))], specs)
