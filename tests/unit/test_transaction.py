"""What a transaction delivers, refuses and frees."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest
import torch
from torch import nn

from hotswap.errors import UpdateFailed, UpdateRejected
from hotswap.seams import Plan
from hotswap.testing.module_engine import HeldPieces, HeldTensor, ModuleEngine
from hotswap.testing.tiny_modules import TinyModel, tiny_state, tiny_target
from hotswap.transaction import Transaction, TransactionOutcome
from hotswap.types import Bucket, LoadMode, Manifest, Payload, Scope, TensorSpec, WeightStamp
from hotswap.weights.memory import trim_heap
from hotswap.weights.pieces import spec_of
from hotswap.weights.target import WeightTarget

STAMP = WeightStamp(version="7", update_count=1, epoch=1)
MIB = 2**20
both_modes = pytest.mark.parametrize("mode", LoadMode)
every_kind = pytest.mark.parametrize("kind", [None, HeldTensor, HeldPieces])


def engine_of(*, tied: bool = False) -> ModuleEngine:
    return ModuleEngine(tiny_target(TinyModel(tied=tied)))


def model_of(engine: ModuleEngine) -> TinyModel:
    assert isinstance(engine.target.module, TinyModel)
    return engine.target.module


def plan_of(
    engine: ModuleEngine, payloads: Mapping[str, Payload], scope: Scope = Scope.FULL
) -> Plan:
    return engine.plan(Manifest.of(spec_of(name, it) for name, it in payloads.items()), scope)


def expected_checksums(state: Mapping[str, torch.Tensor], *, like: ModuleEngine) -> dict[str, str]:
    """Of the model of ``like`` with ``state`` put in without a transaction."""
    model = model_of(like)
    fresh = TinyModel(tied=model.embed.weight is model.head.weight)
    fresh.load_state_dict(model.state_dict())
    fresh.get_buffer("inv_freq").copy_(model.get_buffer("inv_freq"))
    target = tiny_target(fresh)
    plan = target.plan(Manifest.of(spec_of(*item) for item in state.items()), Scope.PARTIAL)
    target.write(plan, list(state.items()))
    return target.checksums()


@both_modes
async def test_what_is_held_grows_by_whole_buckets(mode: LoadMode) -> None:
    engine, state = engine_of(), tiny_state(1)
    plan = plan_of(engine, state)
    sizes = [spec.size_bytes for spec in plan.specs.values()]
    async with Transaction(engine, plan, mode=mode) as transaction:
        assert transaction.held_so_far == (0, 0)
        for count, item in enumerate(state.items(), start=1):
            await transaction.write([item])
            assert transaction.held_so_far == (count, sum(sizes[:count]))


@both_modes
@every_kind
async def test_buckets_then_a_commit_make_the_weights_what_was_sent(
    mode: LoadMode, kind: type[HeldTensor] | None
) -> None:
    engine, state = engine_of(), tiny_state(1)
    expected = expected_checksums(state, like=engine)
    items = [(name, kind(name, tensor) if kind else tensor) for name, tensor in state.items()]
    async with Transaction(engine, plan_of(engine, dict(items)), mode=mode) as transaction:
        await transaction.write(items[:5])
        await transaction.write([])
        await transaction.write(items[5:])
        assert engine.stamps == []
        await transaction.commit(STAMP)
        assert transaction.outcome is TransactionOutcome.COMMITTED
    assert transaction.outcome is TransactionOutcome.COMMITTED
    assert transaction.touched
    assert engine.target.checksums() == expected
    assert engine.stamps == [STAMP]
    assert model_of(engine).layer.recomputed == 1
    assert transaction.tensors_applied == 13
    assert transaction.bytes_applied == sum(tensor.nbytes for tensor in state.values())


async def test_staged_weights_stay_until_the_commit_and_go_in_one_bucket() -> None:
    engine, state = engine_of(), tiny_state(2)
    before = engine.target.checksums()
    async with Transaction(engine, plan_of(engine, state)) as transaction:
        for item in state.items():
            await transaction.write([item])
        assert engine.target.checksums() == before
        assert not transaction.touched
        await transaction.commit(STAMP)
    assert engine.buckets == [tuple(state)]


async def test_a_staged_payload_may_vanish_after_its_write() -> None:
    engine, state = engine_of(), tiny_state(3)
    expected = expected_checksums(state, like=engine)
    async with Transaction(engine, plan_of(engine, state)) as transaction:
        await transaction.write(list(state.items()))
        for tensor in state.values():
            tensor.zero_()
        await transaction.commit(STAMP)
    assert engine.target.checksums() == expected


async def test_direct_buckets_are_written_as_they_come() -> None:
    engine, state = engine_of(), tiny_state(4)
    async with Transaction(engine, plan_of(engine, state), mode=LoadMode.DIRECT) as transaction:
        for item in state.items():
            await transaction.write([item])
            assert engine.written[-1] == item[0]
        await transaction.commit(STAMP)


async def test_its_repr_shows_mode_outcome_and_progress() -> None:
    engine, state = engine_of(), tiny_state(5)
    async with Transaction(engine, plan_of(engine, state)) as transaction:
        await transaction.write([("mean", state["mean"])])
        assert repr(transaction) == "<Transaction staged open <Delivery 1 of 13 tensors>>"
    assert repr(transaction) == "<Transaction staged aborted <Delivery 1 of 13 tensors>>"


async def send(transaction: Transaction, *buckets: Bucket) -> None:
    for bucket in buckets:
        await transaction.write(bucket)
    await transaction.commit(STAMP)


BAD: dict[str, tuple[dict[str, Payload], str]] = {
    "never announced": ({"extra": torch.zeros(1)}, "'extra' was never announced"),
    "wrong shape": ({"mean": torch.zeros(4, 1)}, r"mean \[4, 1\] float32 came, wanted mean \[4\]"),
    "broadcastable": ({"mean": torch.zeros(1)}, r"mean \[1\]"),
    "another float than promised": ({"mean": torch.zeros(4).half()}, "mean .* float16 came"),
    "another kind": ({"mean": HeldTensor("mean", torch.zeros(4).long())}, "int64 came"),
    "sparse": ({"mean": torch.zeros(4).to_sparse()}, "'mean' is sparse"),
    "meta": ({"mean": torch.zeros(4, device="meta")}, "'mean' is on the meta device"),
}


@both_modes
@pytest.mark.parametrize("case", BAD)
async def test_what_was_not_promised_is_rejected_before_the_first_write(
    mode: LoadMode, case: str
) -> None:
    bad, complaint = BAD[case]
    engine, state = engine_of(), tiny_state(6)
    before = engine.target.checksums()
    async with Transaction(engine, plan_of(engine, state), mode=mode) as transaction:
        with pytest.raises(UpdateRejected, match=complaint):
            await transaction.write([("steps", state["steps"]), *bad.items()])
        assert transaction.outcome is TransactionOutcome.OPEN
        # The bucket was refused as a whole, and may come again put right.
        await transaction.write(list(state.items()))
        await transaction.commit(STAMP)
    assert engine.target.checksums() != before


@both_modes
async def test_a_name_delivered_twice_is_rejected(mode: LoadMode) -> None:
    engine, state = engine_of(), tiny_state(7)
    twice = [("mean", state["mean"]), ("mean", state["mean"])]
    async with Transaction(engine, plan_of(engine, state), mode=mode) as transaction:
        with pytest.raises(UpdateRejected, match="1 delivered twice: mean"):
            await transaction.write(twice)
    assert engine.written == []


async def test_twice_in_two_buckets_is_rejected_while_nothing_is_touched() -> None:
    engine, state = engine_of(), tiny_state(7)
    async with Transaction(engine, plan_of(engine, state)) as transaction:
        await transaction.write([("mean", state["mean"])])
        with pytest.raises(UpdateRejected, match="twice: mean"):
            await transaction.write([("mean", state["mean"])])


async def test_after_a_direct_write_whatever_is_wrong_is_a_failure() -> None:
    engine, state = engine_of(), tiny_state(8)
    async with Transaction(engine, plan_of(engine, state), mode=LoadMode.DIRECT) as transaction:
        await transaction.write([("mean", state["mean"])])
        with pytest.raises(UpdateFailed, match="not whole: send a full update"):
            await transaction.write([("mean", state["mean"])])
        assert transaction.outcome is TransactionOutcome.FAILED
        with pytest.raises(RuntimeError, match="has ended"):
            await transaction.write([])
        with pytest.raises(RuntimeError, match="has ended"):
            await transaction.commit(STAMP)


@pytest.mark.parametrize(
    ("mode", "error"), [(LoadMode.STAGED, UpdateRejected), (LoadMode.DIRECT, UpdateFailed)]
)
async def test_a_source_that_ends_early_is_not_committed(
    mode: LoadMode, error: type[Exception]
) -> None:
    engine, state = engine_of(), tiny_state(9)
    async with Transaction(engine, plan_of(engine, state), mode=mode) as transaction:
        await transaction.write([item for item in state.items() if item[0] != "mean"])
        with pytest.raises(error, match="1 tensors not delivered: mean"):
            await transaction.commit(STAMP)
    assert engine.stamps == []


@both_modes
async def test_nothing_delivered_is_nothing_committed(mode: LoadMode) -> None:
    engine = engine_of()
    async with Transaction(engine, plan_of(engine, tiny_state(1)), mode=mode) as transaction:
        with pytest.raises(UpdateRejected, match="13 tensors not delivered"):
            await transaction.commit(STAMP)
    assert (engine.written, transaction.outcome) == ([], TransactionOutcome.ABORTED)


class _BarePlan:
    """The least that the seam promises: no sources, no ties."""

    def __init__(self, *specs: TensorSpec) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.missing: tuple[str, ...] = ()
        self.unknown: tuple[str, ...] = ("skipped",)


async def test_a_plan_of_no_tensors_is_never_a_success() -> None:
    async with Transaction(engine_of(), _BarePlan()) as transaction:
        await transaction.write([("skipped", torch.zeros(1))])
        with pytest.raises(UpdateRejected, match="0 tensors changes nothing"):
            await transaction.commit(STAMP)


async def test_a_bare_plan_still_guards_shapes_and_dtypes() -> None:
    plan = _BarePlan(TensorSpec(name="mean", dtype=torch.float32, shape=(4,)))
    async with Transaction(engine_of(), plan) as transaction:
        for wrong in (torch.zeros(3), torch.zeros(4, dtype=torch.int32)):
            with pytest.raises(UpdateRejected, match=r"wanted mean \[4\] float32"):
                await transaction.write([("mean", wrong)])
        await transaction.write([("mean", torch.zeros(4).half())])
        assert transaction.tensors_applied == 1


@both_modes
async def test_skipped_names_are_delivered_to_nobody(mode: LoadMode) -> None:
    engine = engine_of()
    state = {**tiny_state(10), "layer.rotary.inv_freq": torch.zeros(9)}
    async with Transaction(engine, plan_of(engine, state), mode=mode) as transaction:
        await transaction.write(list(state.items()))
        await transaction.commit(STAMP)
    assert len(engine.written) == transaction.tensors_applied == 13


@both_modes
@every_kind
@pytest.mark.parametrize("split", [1, 6, 12])
async def test_tied_names_that_differ_are_rejected_before_the_first_write(
    mode: LoadMode, kind: type[HeldTensor] | None, split: int
) -> None:
    engine, state = engine_of(tied=True), tiny_state(11)
    items = [(name, kind(name, tensor) if kind else tensor) for name, tensor in state.items()]
    before = engine.target.checksums()
    async with Transaction(engine, plan_of(engine, dict(items)), mode=mode) as transaction:
        with pytest.raises(UpdateRejected, match=r"embed\.weight and head\.weight are one"):
            await send(transaction, items[:split], items[split:])
        assert not transaction.touched
    assert transaction.outcome is TransactionOutcome.ABORTED
    assert engine.written == []
    assert engine.target.checksums() == before


@both_modes
@every_kind
async def test_tied_names_that_are_equal_are_written_once(
    mode: LoadMode, kind: type[HeldTensor] | None
) -> None:
    engine, state = engine_of(tied=True), tiny_state(12)
    # Equal once they are live: a source may keep one of them in another precision.
    state["embed.weight"] = state["embed.weight"].bfloat16().float()
    state["head.weight"] = state["embed.weight"].bfloat16()
    expected = expected_checksums(
        {name: tensor for name, tensor in state.items() if name != "head.weight"}, like=engine
    )
    items = [(name, kind(name, tensor) if kind else tensor) for name, tensor in state.items()]
    async with Transaction(engine, plan_of(engine, dict(items)), mode=mode) as transaction:
        for item in items:
            await transaction.write([item])
        await transaction.commit(STAMP)
    assert engine.target.checksums() == expected
    assert sorted(engine.written) == sorted(set(state) - {"head.weight"})
    model = model_of(engine)
    assert model.embed.weight.data_ptr() == model.head.weight.data_ptr()


async def test_direct_ties_that_never_come_leave_the_weights_alone() -> None:
    engine, state = engine_of(tied=True), tiny_state(13)
    plan = plan_of(engine, state)
    async with Transaction(engine, plan, mode=LoadMode.DIRECT) as transaction:
        await transaction.write([item for item in state.items() if item[0] != "head.weight"])
        with pytest.raises(UpdateRejected, match=r"1 tensors not delivered: head\.weight"):
            await transaction.commit(STAMP)
    assert engine.written == []


@both_modes
async def test_a_partial_update_of_one_part(mode: LoadMode) -> None:
    engine = engine_of()
    state = {"layer.k_proj.bias": torch.randn(4)}
    expected = expected_checksums(state, like=engine)
    plan = plan_of(engine, state, Scope.PARTIAL)
    async with Transaction(engine, plan, mode=mode) as transaction:
        await transaction.write(list(state.items()))
        await transaction.commit(STAMP)
    assert engine.target.checksums() == expected


def _anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


@pytest.mark.parametrize("end", ["commit", "abort", "leave"])
async def test_staging_holds_one_checkpoint_in_the_live_dtype_and_gives_it_back(end: str) -> None:
    module = nn.ParameterDict({name: torch.zeros(8 * MIB, dtype=torch.bfloat16) for name in "abcd"})
    engine = ModuleEngine(WeightTarget(module))
    source = torch.zeros(8 * MIB).fill_(1.5)
    payloads = {name: HeldPieces(name, source) for name in "abcd"}
    # What the tests before this one have left unused would otherwise go back in between.
    gc.collect()
    trim_heap()
    before = _anonymous_bytes()
    async with Transaction(engine, plan_of(engine, payloads)) as transaction:
        await transaction.write(list(payloads.items()))
        staged = _anonymous_bytes() - before
        assert 60 * MIB < staged < 80 * MIB
        if end == "commit":
            await transaction.commit(STAMP)
        if end == "abort":
            transaction.abort()
            assert _anonymous_bytes() - before < 16 * MIB
    assert _anonymous_bytes() - before < 16 * MIB
    assert (module["d"][-1].item() == 1.5) is (end == "commit")
    transaction.abort()
    assert transaction.outcome is (
        TransactionOutcome.COMMITTED if end == "commit" else TransactionOutcome.ABORTED
    )


async def test_more_than_fits_into_memory_is_rejected_with_a_way_out() -> None:
    plan = _BarePlan(TensorSpec(name="huge", dtype=torch.float32, shape=(2**57,)))
    async with Transaction(engine_of(), plan) as transaction:
        with pytest.raises(UpdateRejected, match=r"host memory.*load in direct mode"):
            await transaction.write([("huge", torch.zeros(1).expand(2**57))])


async def test_staging_runs_beside_the_event_loop() -> None:
    engine, state = engine_of(), tiny_state(14)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as group:
        group.start_soon(count)
        async with Transaction(engine, plan_of(engine, state)) as transaction:
            await transaction.write(list(state.items()))
        group.cancel_scope.cancel()
    assert turns > 0
