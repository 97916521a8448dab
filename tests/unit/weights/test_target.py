"""Writes land in place, exactly, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hotswap.errors import UpdateRejected
from hotswap.testing.module_engine import HeldPieces, HeldTensor
from hotswap.testing.tiny_modules import (
    FFN_ROWS,
    HIDDEN,
    KV_ROWS,
    Q_ROWS,
    VOCAB,
    TinyModel,
    tiny_state,
    tiny_target,
)
from hotswap.types import Bucket, Manifest, Payload, Scope, TensorSpec
from hotswap.weights.mapping import FusedPart, FusedRule
from hotswap.weights.pieces import spec_of
from hotswap.weights.plan import TargetPlan
from hotswap.weights.slots import Slot
from hotswap.weights.target import Recomputes, WeightTarget

Q, K, V = (f"layer.{part}_proj.weight" for part in "qkv")


def load(
    target: WeightTarget, payloads: Mapping[str, Payload], scope: Scope = Scope.FULL
) -> TargetPlan:
    bucket: Bucket = list(payloads.items())
    plan = target.plan(Manifest.of(spec_of(name, payload) for name, payload in bucket), scope)
    target.write(plan, bucket)
    target.finish()
    return plan


def live(model: TinyModel) -> dict[str, torch.Tensor]:
    """The model's weights in split names, read without any code under test."""
    qkv, bias = model.layer.qkv_proj.weight, model.layer.qkv_proj.bias
    gate_up = model.layer.gate_up_proj.weight
    found = {
        "embed.weight": model.embed.weight[:VOCAB],
        Q: qkv[:Q_ROWS],
        K: qkv[Q_ROWS : Q_ROWS + KV_ROWS],
        V: qkv[Q_ROWS + KV_ROWS :],
        "layer.q_proj.bias": bias[:Q_ROWS],
        "layer.k_proj.bias": bias[Q_ROWS : Q_ROWS + KV_ROWS],
        "layer.v_proj.bias": bias[Q_ROWS + KV_ROWS :],
        "layer.gate_proj.weight": gate_up[:FFN_ROWS],
        "layer.up_proj.weight": gate_up[FFN_ROWS:],
        "layer.scale": model.layer.scale,
        "head.weight": model.head.weight[:VOCAB],
        "mean": model.get_buffer("mean"),
        "steps": model.get_buffer("steps"),
    }
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def assert_holds(model: TinyModel, state: Mapping[str, torch.Tensor]) -> None:
    found = live(model)
    for name, tensor in state.items():
        assert torch.equal(found[name], tensor), name


def addresses(model: nn.Module) -> dict[str, int]:
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    return {name: tensor.data_ptr() for name, tensor in tensors}


@pytest.mark.parametrize("kind", [None, HeldTensor, HeldPieces])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_full_load_is_exact_and_in_place(
    kind: type[HeldTensor] | None, dtype: torch.dtype
) -> None:
    model = TinyModel()
    before, untouched = addresses(model), model.get_buffer("inv_freq").clone()
    state = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in tiny_state(1).items()
    }
    load(tiny_target(model), {n: kind(n, t) if kind else t for n, t in state.items()})
    assert_holds(
        model, {name: tensor.to(live(model)[name].dtype) for name, tensor in state.items()}
    )
    assert addresses(model) == before
    assert torch.equal(model.get_buffer("inv_freq"), untouched)


def test_the_fused_name_fills_all_rows() -> None:
    model, fused = TinyModel(), torch.randn(16, HIDDEN)
    load(tiny_target(model), {"layer.qkv_proj.weight": fused}, Scope.PARTIAL)
    assert torch.equal(model.layer.qkv_proj.weight, fused)


@pytest.mark.parametrize("part", "qkv")
@pytest.mark.parametrize("leaf", ["weight", "bias"])
def test_one_part_changes_only_its_rows(part: str, leaf: str) -> None:
    model = TinyModel()
    name = f"layer.{part}_proj.{leaf}"
    before, new = live(model), tiny_state(2)[name]
    load(tiny_target(model), {name: new}, Scope.PARTIAL)
    assert_holds(model, {**before, name: new})
    assert not torch.equal(before[name], new)


def test_parts_may_come_in_any_order_and_in_different_updates() -> None:
    model, state = TinyModel(), tiny_state(3)
    for name in reversed([Q, K, V]):
        load(tiny_target(model), {name: state[name]}, Scope.PARTIAL)
    assert_holds(model, {name: state[name] for name in (Q, K, V)})


@given(rows=st.lists(st.integers(1, 5), min_size=1, max_size=5), data=st.data())
@settings(deadline=None, max_examples=50)
def test_any_split_puts_every_row_in_its_place(rows: list[int], data: st.DataObject) -> None:
    module = nn.ModuleDict({"fused": nn.Linear(3, sum(rows))})
    parts = tuple(FusedPart(f"part{at}", n) for at, n in enumerate(rows))
    target = WeightTarget(module, fused=[FusedRule(fused="fused", parts=parts)])
    before = {
        leaf: module.get_parameter(f"fused.{leaf}").detach().clone() for leaf in ("weight", "bias")
    }
    payloads: dict[str, torch.Tensor] = {}
    for leaf, columns in (("weight", (3,)), ("bias", ())):
        chosen = data.draw(st.sets(st.sampled_from(range(len(rows)))))
        for at in chosen:
            new = torch.randn(rows[at], *columns)
            payloads[f"part{at}.{leaf}"] = new
            before[leaf][sum(rows[:at]) : sum(rows[: at + 1])] = new
    if not payloads:
        return
    load(target, payloads, Scope.PARTIAL)
    for leaf, expected in before.items():
        assert torch.equal(module.get_parameter(f"fused.{leaf}"), expected)


STRIDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.t().contiguous().t(),
    "offset": lambda x: torch.cat([torch.full((1, 6), 9.0), x])[1:],
    "stepped": lambda x: x.repeat_interleave(2, dim=0)[::2],
    "columns of a wider one": lambda x: torch.cat([x, x + 1], dim=1)[:, :6],
    "expanded": lambda x: x[:1].expand(8, 6),
    "negated lazily": lambda x: torch.complex(torch.zeros_like(x), -x).conj().imag,
}


@pytest.mark.parametrize("how", STRIDED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strided_sources_are_exact(how: str, dtype: torch.dtype) -> None:
    model = TinyModel().to(dtype)
    source = STRIDED[how](tiny_state(4)[Q])
    load(tiny_target(model), {Q: source}, Scope.PARTIAL)
    assert torch.equal(live(model)[Q], source.to(dtype))


@pytest.mark.parametrize("kind", [HeldTensor, HeldPieces])
def test_a_strided_live_weight_is_filled(kind: type[HeldTensor]) -> None:
    storage = torch.zeros(6, 8)
    module = nn.ParameterDict({"w": storage.t()})
    source = torch.randn(8, 6)
    load(WeightTarget(module), {"w": kind("w", source)})
    assert torch.equal(storage, source.t())


@pytest.mark.parametrize(
    "names", [["embed.weight"], ["head.weight"], ["head.weight", "embed.weight"]]
)
def test_any_alias_of_tied_weights_gives_the_same_model(names: list[str]) -> None:
    model, state = TinyModel(tied=True), tiny_state(5, tied=True)
    new = state.pop("embed.weight")
    load(tiny_target(model), {**state, **dict.fromkeys(names, new)})
    assert_holds(model, {**state, "embed.weight": new, "head.weight": new})
    assert model.embed.weight.data_ptr() == model.head.weight.data_ptr()
    assert model.embed.weight is model.head.weight


def test_padding_rows_are_zero_whatever_they_were() -> None:
    model, state = TinyModel(padding=3), tiny_state(6)
    with torch.no_grad():
        model.embed.weight.fill_(7)
    load(tiny_target(model), state)
    assert_holds(model, state)
    assert model.embed.weight[VOCAB:].abs().sum() == 0
    assert model.embed.weight.shape == (VOCAB + 3, HIDDEN)


def test_derived_tensors_are_recomputed_once_a_commit_then_hooks() -> None:
    model = TinyModel()
    target = tiny_target(model)
    seen: list[float] = []
    target.after_load(lambda: seen.append(model.layer.derived.item()))
    assert isinstance(model.layer, Recomputes)
    state = tiny_state(7)
    plan = target.plan(Manifest.of(spec_of(*item) for item in state.items()), Scope.FULL)
    for item in state.items():
        target.write(plan, [item])
    assert (model.layer.recomputed, seen) == (0, [])
    target.finish()
    target.finish()
    assert model.layer.recomputed == 1
    assert seen == [pytest.approx(state["layer.scale"].item() + 1)]


def test_a_hook_that_fails_is_run_again_by_the_next_finish() -> None:
    model = TinyModel()
    target = tiny_target(model)
    attempts: list[int] = []

    def fail_once() -> None:
        attempts.append(len(attempts))
        if len(attempts) == 1:
            raise RuntimeError("not yet")

    target.after_load(fail_once)
    with pytest.raises(RuntimeError, match="not yet"):
        load(target, tiny_state(8))
    target.finish()
    target.finish()
    assert (attempts, model.layer.recomputed) == ([0, 1], 2)


def test_loading_the_same_checkpoint_three_times_changes_nothing() -> None:
    model, state = TinyModel(tied=True, padding=2), tiny_state(9, tied=True)
    target = tiny_target(model)
    load(target, state)
    once, derived = target.checksums(), model.layer.derived.clone()
    for _ in range(3):
        load(target, state)
        assert target.checksums() == once
        assert torch.equal(model.layer.derived, derived)


def test_modules_made_in_inference_mode_are_written() -> None:
    with torch.inference_mode():
        model = TinyModel()
    state = tiny_state(10)
    target = tiny_target(model)
    plan = target.plan(Manifest.of(spec_of(*item) for item in state.items()), Scope.FULL)
    target.write(plan, [(name, HeldPieces(name, tensor)) for name, tensor in state.items()])
    assert_holds(model, state)


def test_parameters_keep_requires_grad_and_get_no_history() -> None:
    model = TinyModel()
    source = torch.randn(8, 6, requires_grad=True)
    load(tiny_target(model), {Q: source * 2}, Scope.PARTIAL)
    assert model.layer.qkv_proj.weight.requires_grad
    assert model.layer.qkv_proj.weight.is_leaf
    assert torch.equal(live(model)[Q], source.detach() * 2)


@pytest.mark.parametrize("kind", [HeldTensor, HeldPieces])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_big_payloads_are_read_by_several_threads(
    kind: type[HeldTensor], dtype: torch.dtype
) -> None:
    module = nn.ParameterDict({name: torch.zeros(700, 1000) for name in "abc"})
    state = {name: torch.randn(700, 1000, dtype=dtype) for name in "abc"}
    load(WeightTarget(module), {name: kind(name, tensor) for name, tensor in state.items()})
    for name, tensor in state.items():
        assert torch.equal(module[name], tensor.float())


def test_a_source_that_fails_is_heard() -> None:
    state = {name: torch.zeros(1000, 700) for name in "abc"}
    module = nn.ParameterDict({name: tensor.clone() for name, tensor in state.items()})
    payloads = {name: HeldTensor(name, tensor) for name, tensor in state.items()}
    payloads["b"].error = OSError("gone")
    with pytest.raises(OSError, match="gone"):
        load(WeightTarget(module), payloads)


@pytest.mark.parametrize(
    ("item", "complaint"),
    [
        (("nobody", torch.zeros(4)), "'nobody' is not in the plan"),
        ((Q, torch.zeros(1, 6)), r"came as .*q_proj.weight \[1, 6\].*wanted .* \[8, 6\]"),
        ((Q, torch.zeros(8, 6, dtype=torch.int64)), "int64"),
        ((Q, HeldTensor(Q, torch.zeros(6, 8))), r"\[6, 8\]"),
    ],
)
def test_a_bucket_that_was_not_planned_writes_nothing(
    item: tuple[str, Payload], complaint: str
) -> None:
    model = TinyModel()
    target = tiny_target(model)
    plan = target.plan(target.manifest(), Scope.FULL)
    before = target.checksums()
    with pytest.raises(UpdateRejected, match=complaint):
        target.write(plan, [("mean", torch.zeros(4)), item])
    assert target.checksums() == before


def test_names_that_the_plan_skips_are_ignored() -> None:
    model, state = TinyModel(), tiny_state(11)
    load(tiny_target(model), {**state, "layer.rotary.inv_freq": torch.zeros(9)})
    assert_holds(model, state)


def test_only_its_own_plans_are_written() -> None:
    class Foreign:
        specs: Mapping[str, TensorSpec] = {}
        missing: tuple[str, ...] = ()
        unknown: tuple[str, ...] = ()

    with pytest.raises(TypeError, match="is not a plan of this target"):
        tiny_target(TinyModel()).write(Foreign(), [])


@pytest.mark.parametrize("kind", [None, HeldTensor, HeldPieces])
def test_a_slot_can_keep_a_part_of_its_source(kind: type[HeldTensor] | None) -> None:
    module = nn.ParameterDict({"w": torch.zeros(4, 3)})
    target = WeightTarget(module)
    whole = target.plan(target.manifest(), Scope.FULL).slots["w"]
    source = torch.randn(8, 6)
    spec = TensorSpec(name="w", dtype=torch.float32, shape=(8, 6))
    shard = Slot(
        spec=spec,
        region=whole.region,
        start=whole.start,
        stop=whole.stop,
        source=(slice(4, 8), slice(3, 6)),
    )
    plan = TargetPlan(
        slots={"w": shard}, specs={"w": spec}, sources={"w": spec}, ties=(), missing=(), skipped=()
    )
    target.write(plan, [("w", kind("w", source) if kind else source)])
    assert torch.equal(module["w"], source[4:, 3:])
