"""The validator: what fits the live model, and what the message says when it does not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import nn

from hotswap.errors import UpdateRejected
from hotswap.seams import Plan
from hotswap.testing.tiny_modules import TINY_RULES, TinyModel, tiny_state, tiny_target
from hotswap.types import Manifest, Scope, TensorSpec
from hotswap.weights.mapping import FusedPart, FusedRule
from hotswap.weights.plan import SHOWN, CheckedPlan, TargetPlan
from hotswap.weights.target import WeightTarget

Q, K, V = (f"layer.{part}_proj.weight" for part in "qkv")
QKV = "layer.qkv_proj.weight"


def manifest_of(state: Mapping[str, torch.Tensor]) -> Manifest:
    return Manifest.of(
        TensorSpec(name=name, dtype=tensor.dtype, shape=tuple(tensor.shape))
        for name, tensor in state.items()
    )


def full(state: Mapping[str, torch.Tensor], model: TinyModel | None = None) -> TargetPlan:
    return tiny_target(model or TinyModel()).plan(manifest_of(state), Scope.FULL)


def partial(state: Mapping[str, torch.Tensor], model: TinyModel | None = None) -> TargetPlan:
    return tiny_target(model or TinyModel()).plan(manifest_of(state), Scope.PARTIAL)


def rejection(state: Mapping[str, torch.Tensor], *, scope: Scope = Scope.FULL) -> str:
    with pytest.raises(UpdateRejected) as caught:
        tiny_target(TinyModel()).plan(manifest_of(state), scope)
    return str(caught.value)


def test_the_manifest_is_what_a_full_plan_accepts() -> None:
    target = tiny_target(TinyModel())
    plan = target.plan(target.manifest(), Scope.FULL)
    assert set(plan.specs) == set(tiny_state(0)) == set(target.manifest().names)
    assert (plan.missing, plan.unknown, plan.ties) == ((), (), ())
    assert repr(plan) == "<TargetPlan 13 tensors, 0 missing, 0 skipped>"
    assert repr(target) == "<WeightTarget TinyModel 13 tensors>"


def test_it_satisfies_the_seams() -> None:
    plan: Plan = full(tiny_state(0))
    assert isinstance(plan, CheckedPlan)


def test_specs_have_the_shape_of_the_source_and_the_live_dtype() -> None:
    state = tiny_state(0)
    state[Q] = state[Q].to(torch.bfloat16)
    plan = full(state)
    assert plan.specs[Q] == TensorSpec(name=Q, dtype=torch.float32, shape=(8, 6))
    assert plan.sources[Q] == TensorSpec(name=Q, dtype=torch.bfloat16, shape=(8, 6))


def test_a_tied_manifest_names_one_alias() -> None:
    names = tiny_target(TinyModel(tied=True)).manifest().names
    assert "embed.weight" in names
    assert "head.weight" not in names


def test_the_fused_name_is_accepted_instead_of_its_parts() -> None:
    state = tiny_state(0)
    fused = torch.cat([state.pop(Q), state.pop(K), state.pop(V)])
    plan = full({**state, QKV: fused})
    assert plan.specs[QKV].shape == (16, 6)


@pytest.mark.parametrize("scope", Scope)
def test_the_fused_name_and_a_part_together_are_rejected(scope: Scope) -> None:
    state = tiny_state(0)
    message = rejection({**state, QKV: torch.zeros(16, 6)}, scope=scope)
    assert f"3 delivered both fused and split: {Q} with {QKV}" in message


def test_a_lone_q_is_fine_in_a_partial_update() -> None:
    plan = partial({Q: torch.zeros(8, 6)})
    assert list(plan.slots) == [Q]
    assert K in plan.missing
    assert len(plan.missing) == 12


def test_a_lone_q_is_an_error_in_a_full_update() -> None:
    state = tiny_state(0)
    del state[K], state[V]
    assert f"2 missing: {K}, {V}" in rejection(state)


def test_unknown_and_missing_names_are_all_listed() -> None:
    state = {f"module.{name}": tensor for name, tensor in tiny_state(0).items()}
    message = rejection(state)
    assert "0 of its 13 tensors belong to the live model" in message
    for name in tiny_state(0):
        assert f"module.{name}" in message
        assert f" {name}" in message


def test_long_lists_are_cut_and_counted() -> None:
    state = {f"x{at:03}": torch.zeros(1) for at in range(SHOWN + 7)}
    message = rejection(state, scope=Scope.PARTIAL)
    assert f"{SHOWN + 7} unknown: x000, x001" in message
    assert f"x{SHOWN - 1:03} and 7 more" in message
    assert f"x{SHOWN:03}" not in message


def test_one_unknown_name_rejects_a_partial_update() -> None:
    message = rejection({Q: torch.zeros(8, 6), "typo": torch.zeros(1)}, scope=Scope.PARTIAL)
    assert "1 unknown: typo" in message
    assert "missing" not in message


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("names", [(), ("layer.rotary.inv_freq",)])
def test_nothing_to_apply_is_never_a_success(scope: Scope, names: tuple[str, ...]) -> None:
    message = rejection({name: torch.zeros(5) for name in names}, scope=scope)
    assert f"0 of its {len(names)} tensors belong to the live model" in message


def test_names_skipped_by_rule_are_reported_as_such() -> None:
    plan = full({**tiny_state(0), "layer.rotary.inv_freq": torch.zeros(9)})
    assert plan.skipped == plan.unknown == ("layer.rotary.inv_freq",)
    assert "layer.rotary.inv_freq" not in plan.specs


def test_a_skip_rule_matches_whole_components_only() -> None:
    assert "1 unknown: myrotary.inv_freq" in rejection(
        {**tiny_state(0), "myrotary.inv_freq": torch.zeros(9)}
    )


def test_a_name_that_the_model_has_is_never_skipped() -> None:
    target = WeightTarget(nn.Linear(2, 2), skipped=("*",))
    with pytest.raises(UpdateRejected, match="1 missing: bias"):
        target.plan(manifest_of({"weight": torch.zeros(2, 2)}), Scope.FULL)


def test_persistent_buffers_are_required_and_others_are_unknown() -> None:
    state = tiny_state(0)
    del state["mean"]
    message = rejection({**state, "inv_freq": torch.zeros(5)})
    assert "1 unknown: inv_freq" in message
    assert "1 missing: mean" in message


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mean", (4, 1)),
        ("mean", (1, 4)),
        ("mean", (1,)),
        ("mean", ()),
        ("layer.scale", (1,)),
        (Q, (1, 6)),
        (Q, (6, 8)),
        ("embed.weight", (12, 6)),
        ("embed.weight", (10, 6)),
    ],
)
def test_shapes_must_be_equal(name: str, shape: tuple[int, ...]) -> None:
    state = tiny_state(0)
    wanted = list(state[name].shape)
    message = rejection({**state, name: torch.zeros(shape)})
    assert f"1 of the wrong shape: {name} is {list(shape)}, wanted {wanted}" in message


@pytest.mark.parametrize(
    ("name", "dtype", "complaint"),
    [
        ("mean", torch.int64, "mean is int64, wanted float32 or another float"),
        ("mean", torch.bool, "mean is bool, wanted float32 or another float"),
        ("mean", torch.complex64, "mean is complex64, wanted float32 or another float"),
        ("steps", torch.float32, "steps is float32, wanted int64"),
        ("steps", torch.int32, "steps is int32, wanted int64"),
    ],
)
def test_dtypes_other_than_floats_must_be_equal(
    name: str, dtype: torch.dtype, complaint: str
) -> None:
    state = tiny_state(0)
    message = rejection({**state, name: state[name].to(dtype)})
    assert f"1 of the wrong dtype: {complaint}" in message


def test_a_padded_vocabulary_takes_the_true_rows_only() -> None:
    model = TinyModel(padding=5)
    assert full(tiny_state(0), model).specs["embed.weight"].shape == (11, 6)
    with pytest.raises(UpdateRejected, match=r"embed.weight is \[16, 6\], wanted \[11, 6\]"):
        full({**tiny_state(0), "embed.weight": torch.zeros(16, 6)}, model)


def test_aliases_of_a_tied_model_are_ties() -> None:
    model = TinyModel(tied=True)
    embed, both = tiny_state(0, tied=True), tiny_state(0)
    head = {name: tensor for name, tensor in both.items() if name != "embed.weight"}
    assert full(embed, model).ties == full(head, model).ties == ()
    assert full(both, model).ties == (("embed.weight", "head.weight"),)
    assert partial({"head.weight": torch.zeros(11, 6)}, model).ties == ()


def test_an_untied_model_needs_both() -> None:
    assert "1 missing: head.weight" in rejection(tiny_state(0, tied=True))


def test_two_parameter_objects_on_one_storage_are_tied() -> None:
    model = TinyModel()
    model.head.weight = nn.Parameter(model.embed.weight.detach())
    assert full(tiny_state(0), model).ties == (("embed.weight", "head.weight"),)


def test_parts_of_tied_fused_modules_are_tied() -> None:
    model = nn.ModuleDict({"a": TinyModel().layer, "b": TinyModel().layer})
    model["b"] = model["a"]
    target = WeightTarget(model, fused=TINY_RULES)
    specs = [
        TensorSpec(name=f"{owner}.q_proj.weight", dtype=torch.float32, shape=(8, 6))
        for owner in "ab"
    ]
    plan = target.plan(Manifest.of(specs), Scope.PARTIAL)
    assert plan.ties == (("a.q_proj.weight", "b.q_proj.weight"),)
    assert "a.q_proj.weight" not in plan.missing


class _Odd(nn.Module):
    """One ordinary weight beside one that cannot be updated."""

    def __init__(self, odd: torch.Tensor, **beside: torch.Tensor) -> None:
        super().__init__()
        self.plain = nn.Parameter(torch.zeros(2))
        self.odd = nn.Parameter(odd, requires_grad=False)
        for name, tensor in beside.items():
            self.register_buffer(name, tensor)


@pytest.mark.parametrize(
    ("odd", "beside", "reason"),
    [
        (torch.zeros(2, dtype=torch.int8), {}, "quantised: a parameter of dtype int8"),
        (torch.zeros(2, dtype=torch.uint8), {}, "quantised: a parameter of dtype uint8"),
        (
            torch.zeros(2, dtype=torch.float8_e4m3fn),
            {"odd_scale_inv": torch.ones(1)},
            "quantised: float8_e4m3fn, scaled by odd_scale_inv",
        ),
        (torch.zeros(2, device="meta"), {}, "on the meta device"),
        (torch.zeros(1).expand(2), {}, "expanded"),
    ],
)
def test_what_cannot_be_updated_is_refused_by_name(
    odd: torch.Tensor, beside: dict[str, torch.Tensor], reason: str
) -> None:
    target = WeightTarget(_Odd(odd, **beside))
    everything = target.manifest()
    with pytest.raises(UpdateRejected) as caught:
        target.plan(everything, Scope.FULL)
    assert f"1 not supported: odd ({reason}" in str(caught.value)
    only = Manifest.of([everything["odd"]])
    with pytest.raises(UpdateRejected, match="not supported: odd"):
        target.plan(only, Scope.PARTIAL)
    plain = target.plan(Manifest.of([everything["plain"]]), Scope.PARTIAL)
    assert list(plain.specs) == ["plain"]


def test_eight_bit_floats_without_a_scale_are_floats() -> None:
    target = WeightTarget(_Odd(torch.zeros(2, dtype=torch.float8_e4m3fn)))
    assert set(target.plan(target.manifest(), Scope.FULL).specs) == {"plain", "odd"}


def test_partly_shared_memory_is_refused_by_name() -> None:
    flat = torch.zeros(10)
    module = nn.ParameterDict({"a": flat[:4], "b": flat[2:6], "c": flat[6:], "d": flat[3:5]})
    target = WeightTarget(module)
    with pytest.raises(UpdateRejected) as caught:
        target.plan(target.manifest(), Scope.FULL)
    assert "3 not supported: a (shares a part of its memory with" in str(caught.value)
    assert "c (" not in str(caught.value)


def test_neighbours_and_columns_of_one_storage_are_fine() -> None:
    flat = torch.zeros(4, 4)
    module = nn.ParameterDict({"a": flat[:2, :2], "b": flat[:2, 2:], "c": flat[2:]})
    target = WeightTarget(module)
    assert len(target.plan(target.manifest(), Scope.FULL).specs) == 3


@pytest.mark.parametrize(
    ("padded", "complaint"),
    [
        ({"nope": 1}, "'nope'"),
        ({"embed.weight": 12}, r"\[12\] true rows for embed.weight"),
        ({"embed.weight": 0}, r"\[0\] true rows"),
        ({"layer.qkv_proj.weight": 15}, "fused and has padded rows"),
    ],
)
def test_padding_that_does_not_fit_the_module_is_refused(
    padded: dict[str, int], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        WeightTarget(TinyModel(), fused=TINY_RULES, padded_rows=padded)


def test_contradicting_padding_of_tied_weights_is_refused() -> None:
    with pytest.raises(ValueError, match=r"embed\.weight, head\.weight"):
        WeightTarget(TinyModel(tied=True), padded_rows={"embed.weight": 9, "head.weight": 10})


def test_a_part_named_like_a_live_weight_is_refused() -> None:
    module = nn.ModuleDict({"qk": nn.Linear(2, 4), "q": nn.Linear(2, 2)})
    rule = FusedRule(fused="qk", parts=(FusedPart("q", 2), FusedPart("k", 2)))
    with pytest.raises(ValueError, match=r"'q.weight' means a part of qk.weight and of q.weight"):
        WeightTarget(module, fused=[rule])
