"""Noise in place of weights, and the snapshot that tells whether they came back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotswap.testing.tiny_modules import VOCAB, TinyModel, tiny_state, tiny_target
from hotswap.types import Manifest, Scope
from hotswap.weights.noise import fill_with_noise
from hotswap.weights.pieces import spec_of
from hotswap.weights.snapshot import WeightSnapshot, without
from hotswap.weights.target import WeightTarget


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.float8_e4m3fn,
        torch.complex64,
        torch.int64,
        torch.uint8,
        torch.bool,
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(64, 3), (16,)])
def test_noise_leaves_nothing_of_what_was_there(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    before = torch.ones(shape).to(dtype)
    tensor = before.clone()
    state = torch.random.get_rng_state()
    fill_with_noise(tensor)

    assert tensor.dtype is dtype
    assert not torch.equal(tensor.view(torch.uint8), before.view(torch.uint8))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_noise_fills_views_and_empty_tensors_and_scalars() -> None:
    whole = torch.zeros(4, 6)
    fill_with_noise(whole[1:3, ::2])
    assert torch.count_nonzero(whole[1:3, ::2]) == 6
    assert torch.count_nonzero(whole) == 6
    fill_with_noise(torch.zeros(0, 3))
    scalar = torch.tensor(0.0)
    fill_with_noise(scalar)
    assert scalar != 0


@pytest.mark.parametrize("tied", [False, True])
def test_a_reset_spoils_what_a_full_update_restores(tied: bool) -> None:
    model = TinyModel(tied=tied, padding=2)
    target = tiny_target(model)
    state = tiny_state(3, tied=tied)
    plan = target.plan(Manifest.of(spec_of(n, t) for n, t in state.items()), Scope.FULL)
    target.write(plan, list(state.items()))
    target.finish()
    snapshot = WeightSnapshot(checksums=target.checksums())
    address, ran = model.embed.weight.data_ptr(), model.layer.recomputed

    names = target.reset(("inv_freq",))

    assert ("head.weight" in names) is not tied
    now = target.checksums()
    assert {name for name in now if now[name] == snapshot.checksums[name]} == {"inv_freq"}
    assert model.embed.weight.data_ptr() == address
    assert not model.embed.weight[VOCAB:].any()
    told = snapshot.difference(now)
    assert told is not None
    assert told.startswith(f"{len(now) - 1} changed: ")
    assert "embed.weight" in told

    target.write(plan, list(state.items()))
    target.finish()
    assert model.layer.recomputed == ran + 1
    assert snapshot.difference(target.checksums()) is None


def test_a_name_with_a_skipped_part_stays_under_every_alias() -> None:
    model = TinyModel(tied=True)
    target = tiny_target(model)
    before = target.checksums()
    names = target.reset(("head", "qkv"))

    now = target.checksums()
    assert "embed.weight" not in names
    for name in ("embed.weight", "head.weight", "layer.qkv_proj.weight", "layer.qkv_proj.bias"):
        assert now[name] == before[name]
    assert now["layer.gate_up_proj.weight"] != before["layer.gate_up_proj.weight"]


def test_what_an_update_cannot_write_is_not_spoilt() -> None:
    module = nn.Module()
    module.weight = nn.Parameter(torch.ones(4, dtype=torch.int8), requires_grad=False)
    module.other = nn.Parameter(torch.ones(4))
    assert WeightTarget(module).reset(()) == ("other",)
    assert torch.equal(module.weight, torch.ones(4, dtype=torch.int8))


def test_a_difference_names_what_changed_went_and_came() -> None:
    snapshot = WeightSnapshot(checksums={"a": "1", "b": "2", "c": "3"})

    assert snapshot.difference({"a": "1", "b": "2", "c": "3"}) is None
    assert snapshot.difference({"a": "1", "b": "9", "d": "3"}) == (
        "1 changed: b; 1 gone: c; 1 new: d"
    )
    assert snapshot.difference({"a": "1", "b": "9", "c": "3"}, skipped=("b",)) is None
    assert repr(snapshot) == "<WeightSnapshot 3 tensors>"


def test_without_drops_names_by_their_parts() -> None:
    assert without({"x.bias": "1", "x.weight": "2"}, ("bias",)) == {"x.weight": "2"}
    assert without({"x.bias": "1"}, ()) == {"x.bias": "1"}
