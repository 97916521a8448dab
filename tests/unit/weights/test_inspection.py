"""What a target shows of the live weights: rows and checksums."""

from __future__ import annotations

import copy

import pytest
import torch
import xxhash
from torch import nn

from hotswap.testing.tiny_modules import HIDDEN, TINY_RULES, VOCAB, TinyModel, tiny_target
from hotswap.weights.target import WeightTarget


@pytest.mark.parametrize("name", ["layers.0.qkv_proj.weight", "model.layers.0.qkv_proj.weight"])
def test_read_takes_names_with_and_without_the_prefix(name: str) -> None:
    for prefix in ("model.", ""):
        module = nn.Module()
        inner = nn.ModuleDict({"0": nn.ModuleDict({"qkv_proj": nn.Linear(6, 16)})})
        module.add_module("layers", inner)
        root = module if not prefix else nn.ModuleDict({"model": module})
        target = WeightTarget(root, fused=TINY_RULES)
        weight = root.get_parameter(f"{prefix}layers.0.qkv_proj.weight")
        assert torch.equal(target.read(name, 3), weight[:3])
        split = name.replace("qkv", "k")
        assert torch.equal(target.read(split, 100), weight[8:12])


def test_read_gives_a_copy_of_true_rows_in_float32() -> None:
    model = TinyModel(padding=2).to(torch.bfloat16)
    target = tiny_target(model)
    shown = target.read("embed.weight", 100)
    assert (shown.dtype, shown.shape) == (torch.float32, (VOCAB, HIDDEN))
    before = target.checksums()
    shown.fill_(0)
    assert target.checksums() == before
    assert target.read("layer.scale", 5).shape == ()
    assert target.read("steps", 1).item() == 3
    assert target.read("steps", 1).dtype is torch.int64
    assert torch.equal(target.read("inv_freq", 2), model.get_buffer("inv_freq")[:2].float())
    assert target.read("mean", 0).shape == target.read("mean", -1).shape == (0,)


def test_read_shows_booleans_as_integers_and_complex_numbers_as_pairs() -> None:
    module = nn.Module()
    module.register_buffer("mask", torch.tensor([True, False]))
    module.register_buffer("phase", torch.tensor([1 + 2j]))
    target = WeightTarget(module)
    assert target.read("mask", 2).tolist() == [1, 0]
    assert target.read("phase", 1).tolist() == [[1.0, 2.0]]


def test_read_knows_no_other_names() -> None:
    target = WeightTarget(nn.ParameterDict({"w": torch.zeros(2, device="meta")}))
    with pytest.raises(KeyError, match="nope: no such weight"):
        target.read("nope", 1)
    with pytest.raises(KeyError, match="w: on the meta device"):
        target.read("w", 1)


def test_checksums_cover_every_parameter_and_buffer_by_live_name() -> None:
    model = TinyModel(tied=True)
    found = tiny_target(model).checksums()
    assert set(found) == {
        *dict(model.named_parameters(remove_duplicate=False)),
        *dict(model.named_buffers()),
    }
    assert found["embed.weight"] == found["head.weight"]
    assert found["inv_freq"] == xxhash.xxh3_64_hexdigest(
        model.get_buffer("inv_freq").numpy().tobytes()
    )


def test_each_checksum_follows_its_own_tensor() -> None:
    model = TinyModel()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.layer.qkv_proj.bias[11] += 1
    one, other = tiny_target(model).checksums(), tiny_target(twin).checksums()
    assert {name for name in one if one[name] != other[name]} == {"layer.qkv_proj.bias"}


def test_a_checksum_that_cannot_be_made_names_the_tensor() -> None:
    target = WeightTarget(nn.ParameterDict({"w": torch.zeros(2, device="meta")}))
    with pytest.raises(ValueError, match=r"^w: .*meta"):
        target.checksums()
