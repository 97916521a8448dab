"""Commits that fail, once or for good, at every place where they can; and cancellation."""

from __future__ import annotations

import logging
import threading

import anyio
import anyio.to_thread
import pytest
import torch

from hotswap.errors import UpdateFailed, UpdateRejected
from hotswap.seams import Plan
from hotswap.testing.module_engine import HeldPieces, HeldTensor, ModuleEngine
from hotswap.testing.tiny_modules import TinyModel, tiny_state, tiny_target
from hotswap.transaction import Transaction, TransactionOutcome
from hotswap.types import Bucket, LoadMode, Manifest, Payload, Scope, WeightStamp
from hotswap.weights.pieces import spec_of

TENSORS = len(tiny_state(0))
PLACES: list[int | None] = [*range(TENSORS), None]
STAMP = WeightStamp(version="7", update_count=1, epoch=1)


class FailingEngine(ModuleEngine):
    """Fails at ``place`` (None is the commit itself): once, or every time."""

    def __init__(self, place: int | None, *, once: bool) -> None:
        super().__init__(tiny_target(TinyModel()), fails=self._fails)
        self.failures = 0
        self._place = place
        self._once = once
        self._base = 0

    def _fails(self, at: int | None) -> bool:
        if at is not None:
            at -= self._base
        if at != self._place or (self._once and self.failures):
            return False
        self.failures += 1
        self._base = len(self.written)
        return True


def fresh_checksums(engine: ModuleEngine, state: dict[str, torch.Tensor]) -> dict[str, str]:
    """Of a model that never saw anything but ``state``."""
    model = TinyModel()
    model.get_buffer("inv_freq").copy_(engine.target.module.get_buffer("inv_freq"))
    target = tiny_target(model)
    plan = target.plan(manifest_of(state), Scope.FULL)
    target.write(plan, list(state.items()))
    return target.checksums()


def manifest_of(state: dict[str, torch.Tensor]) -> Manifest:
    return Manifest.of(spec_of(name, tensor) for name, tensor in state.items())


def begin(engine: ModuleEngine, state: dict[str, torch.Tensor], mode: LoadMode) -> Transaction:
    return Transaction(engine, engine.plan(manifest_of(state), Scope.FULL), mode=mode)


async def run(transaction: Transaction, state: dict[str, torch.Tensor]) -> None:
    async with transaction:
        for item in state.items():
            await transaction.write([item])
        await transaction.commit(STAMP)


async def run_to_failure(
    engine: ModuleEngine, state: dict[str, torch.Tensor], mode: LoadMode
) -> None:
    transaction = begin(engine, state, mode)
    with pytest.raises(UpdateFailed, match=r"injected.*send a full update") as caught:
        await run(transaction, state)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert transaction.outcome is TransactionOutcome.FAILED


@pytest.mark.parametrize("place", PLACES)
async def test_a_staged_commit_that_fails_once_rolls_forward(
    place: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    engine, state = FailingEngine(place, once=True), tiny_state(1)
    with caplog.at_level(logging.WARNING, "hotswap.transaction"):
        transaction = begin(engine, state, LoadMode.STAGED)
        await run(transaction, state)
    assert transaction.outcome is TransactionOutcome.ROLLED_FORWARD
    assert engine.failures == 1
    assert engine.target.checksums() == fresh_checksums(engine, state)
    assert engine.stamps == [STAMP]
    assert isinstance(engine.target.module, TinyModel)
    assert engine.target.module.layer.recomputed == 1
    assert "injected" in caplog.text


@pytest.mark.parametrize("place", PLACES)
async def test_a_staged_commit_that_always_fails_is_a_failure(place: int | None) -> None:
    engine, state = FailingEngine(place, once=False), tiny_state(2)
    await run_to_failure(engine, state, LoadMode.STAGED)
    assert engine.failures == 2
    assert engine.stamps == []


@pytest.mark.parametrize("place", PLACES)
async def test_a_direct_update_that_fails_once_is_a_failure(place: int | None) -> None:
    engine, state = FailingEngine(place, once=True), tiny_state(3)
    await run_to_failure(engine, state, LoadMode.DIRECT)
    assert (engine.failures, engine.stamps) == (1, [])


@pytest.mark.parametrize("mode", LoadMode)
async def test_a_full_update_mends_torn_weights(mode: LoadMode) -> None:
    engine = FailingEngine(5, once=False)
    await run_to_failure(engine, tiny_state(4), LoadMode.DIRECT)
    engine.fails = lambda _at: False
    state = tiny_state(5)
    transaction = begin(engine, state, mode)
    await run(transaction, state)
    assert transaction.outcome is TransactionOutcome.COMMITTED
    assert engine.target.checksums() == fresh_checksums(engine, state)


@pytest.mark.parametrize("kind", [HeldTensor, HeldPieces])
@pytest.mark.parametrize("name", tiny_state(0))
async def test_a_source_that_cannot_be_read_is_rejected_and_named(
    name: str, kind: type[HeldTensor]
) -> None:
    engine, state = FailingEngine(None, once=True), tiny_state(6)
    before = engine.target.checksums()
    payloads: list[tuple[str, Payload]] = [
        (key, kind(key, it, error=OSError(5, f"short read of {key}") if key == name else None))
        for key, it in state.items()
    ]
    async with Transaction(engine, engine.plan(manifest_of(state), Scope.FULL)) as transaction:
        with pytest.raises(UpdateRejected, match=f"OSError.*short read of {name}"):
            await transaction.write(payloads)
        assert transaction.outcome is TransactionOutcome.ABORTED
    assert engine.target.checksums() == before
    assert not transaction.touched


async def test_a_direct_source_that_cannot_be_read_is_a_failure() -> None:
    engine, state = ModuleEngine(tiny_target(TinyModel())), tiny_state(7)
    plan = engine.plan(manifest_of(state), Scope.FULL)
    async with Transaction(engine, plan, mode=LoadMode.DIRECT) as transaction:
        with pytest.raises(UpdateFailed, match="OSError: gone"):
            await transaction.write(
                [("mean", HeldTensor("mean", state["mean"], error=OSError("gone")))]
            )
    assert transaction.outcome is TransactionOutcome.FAILED


class _Gate(HeldTensor):
    """A source whose read waits until the test lets it go on."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        super().__init__(name, tensor)
        self.entered, self.opened = threading.Event(), threading.Event()

    def read_into(self, out: torch.Tensor) -> None:
        self.entered.set()
        assert self.opened.wait(30)
        super().read_into(out)


@pytest.mark.parametrize("name", tiny_state(0))
async def test_cancelled_while_staging_nothing_is_touched(name: str) -> None:
    engine, state = ModuleEngine(tiny_target(TinyModel())), tiny_state(8)
    before = engine.target.checksums()
    gate = _Gate(name, state[name])
    payloads: Bucket = [(key, gate if key == name else it) for key, it in state.items()]
    transaction = Transaction(engine, engine.plan(manifest_of(state), Scope.FULL))

    async def stage() -> None:
        async with transaction:
            await transaction.write(payloads)
            await transaction.commit(STAMP)

    async with anyio.create_task_group() as group:
        group.start_soon(stage)
        await anyio.to_thread.run_sync(gate.entered.wait, 30)
        group.cancel_scope.cancel()
        gate.opened.set()
    assert transaction.outcome is TransactionOutcome.ABORTED
    assert engine.target.checksums() == before
    assert (engine.written, transaction.touched) == ([], False)


class _SlowEngine(ModuleEngine):
    """Lets the test in before each tensor write and before the commit."""

    def __init__(self) -> None:
        super().__init__(tiny_target(TinyModel()))
        self.at_write, self.go_on = anyio.Event(), anyio.Event()

    async def write(self, plan: Plan, bucket: Bucket) -> None:
        self.at_write.set()
        await self.go_on.wait()
        await super().write(plan, bucket)


@pytest.mark.parametrize("mode", LoadMode)
async def test_cancelled_in_the_middle_of_a_write_the_write_goes_on(mode: LoadMode) -> None:
    engine, state = _SlowEngine(), tiny_state(9)
    transaction = Transaction(engine, engine.plan(manifest_of(state), Scope.FULL), mode=mode)

    async def update() -> None:
        async with transaction:
            await transaction.write(list(state.items()))
            await transaction.commit(STAMP)

    async with anyio.create_task_group() as group:
        group.start_soon(update)
        await engine.at_write.wait()
        group.cancel_scope.cancel()
        engine.go_on.set()
    assert len(engine.written) == TENSORS
    # Direct, the cancellation strikes between the write and the commit.
    whole = mode is LoadMode.STAGED
    assert transaction.outcome is (
        TransactionOutcome.COMMITTED if whole else TransactionOutcome.FAILED
    )
    assert engine.stamps == ([STAMP] if whole else [])


async def test_cancelled_before_the_first_write_of_a_commit_nothing_is_touched() -> None:
    engine, state = ModuleEngine(tiny_target(TinyModel())), tiny_state(10)
    before = engine.target.checksums()
    transaction = Transaction(engine, engine.plan(manifest_of(state), Scope.FULL))
    with anyio.CancelScope() as scope:
        async with transaction:
            await transaction.write(list(state.items()))
            scope.cancel()
            await transaction.commit(STAMP)
    assert scope.cancelled_caught
    assert transaction.outcome is TransactionOutcome.ABORTED
    assert not transaction.touched
    assert engine.target.checksums() == before
