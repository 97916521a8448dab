"""The rollout model: its names, those of training, and weights that arrive under these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hotswap.errors import UpdateRejected
from hotswap.rollout import RolloutModel, RolloutModelConfig
from hotswap.testing.checkpoints import make_checkpoint


def rollout(directory: Path) -> RolloutModel:
    return RolloutModel(RolloutModelConfig(model_name_or_path=str(directory), device="cpu"))


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(directory / "model.safetensors"))


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_the_mapping_puts_training_weights_where_they_are_live(tmp_path: Path, tied: bool) -> None:
    # A vocabulary that has to be padded.
    directory = make_checkpoint(tmp_path / "a", arch="qwen2", tied=tied, vocab_size=300)
    model, trained = rollout(directory), tensors(directory)
    live, names = model.state_dict(), model.get_name_mappings_to_training()
    assert live.keys() == names.keys()
    used: set[str] = set()
    for name, training in names.items():
        parts = [training] if isinstance(training, str) else training
        used.update(parts)
        assert torch.equal(live[name], torch.cat([trained[part] for part in parts])), name
    assert used == trained.keys()
    assert names["model.norm.weight"] == "model.norm.weight"
    assert names["model.layers.1.mlp.gate_up_proj.weight"] == [
        "model.layers.1.mlp.gate_proj.weight",
        "model.layers.1.mlp.up_proj.weight",
    ]
    head = "model.embed_tokens.weight" if tied else "lm_head.weight"
    assert names["lm_head.weight"] == head
    assert model.get_name_mappings_to_training(trainer_degree=4) == names
    assert repr(model).startswith(f"<RolloutModel {directory} <WeightTarget CausalLm")


def test_new_weights_arrive_in_place_under_training_names(tmp_path: Path) -> None:
    a, b = (make_checkpoint(tmp_path / str(seed), seed=seed) for seed in (1, 2))
    model, other = rollout(a), rollout(b)
    before = {name: live.data_ptr() for name, live in model.state_dict().items()}
    model.load_weights(iter(tensors(b).items()))
    after = model.state_dict()
    assert {name: live.data_ptr() for name, live in after.items()} == before
    assert all(torch.equal(after[name], live) for name, live in other.state_dict().items())


def test_weights_that_are_not_all_there_change_nothing(tmp_path: Path) -> None:
    a, b = (make_checkpoint(tmp_path / str(seed), seed=seed) for seed in (1, 2))
    model = rollout(a)
    before = {name: live.clone() for name, live in model.state_dict().items()}
    short = tensors(b)
    del short["model.norm.weight"]
    with pytest.raises(UpdateRejected, match=r"model\.norm\.weight"):
        model.load_weights(short.items())
    assert all(torch.equal(live, before[name]) for name, live in model.state_dict().items())


def test_what_one_process_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="tensor_parallel_size is 4, wanted 1"):
        RolloutModelConfig(model_name_or_path="x", tensor_parallel_size=4)
    with pytest.raises(ValueError, match="dynamic_load_weight is False"):
        RolloutModelConfig(model_name_or_path="x", dynamic_load_weight=False)
    with pytest.raises(ValueError, match="nowhere is no directory"):
        RolloutModel(RolloutModelConfig(model_name_or_path="nowhere"))


@pytest.mark.parametrize("length", [0, -1, 1.5, None])
def test_a_length_that_no_text_has_is_refused(length: Any) -> None:
    with pytest.raises(ValueError, match=f"max_model_len is {length}, wanted how many tokens"):
        RolloutModelConfig(model_name_or_path="x", max_model_len=length)


def test_a_device_that_is_none_is_refused(tmp_path: Path) -> None:
    config = RolloutModelConfig(
        model_name_or_path=str(make_checkpoint(tmp_path / "a")), device="abacus"
    )
    with pytest.raises(ValueError, match="device 'abacus' is none, wanted auto, cpu, cuda"):
        RolloutModel(config)


WRONG: dict[str, tuple[Callable[[torch.Tensor], object], str]] = {
    "meta": (lambda tensor: tensor.to("meta"), "on the meta device, without memory"),
    "sparse": (lambda tensor: tensor.to_sparse(), r"sparse \(sparse_coo\)"),
    "a number": (lambda _tensor: 3, "a int"),
    "bytes of another dtype": (lambda tensor: tensor.to(torch.int8), "int8"),
    "a column": (lambda tensor: tensor.reshape(-1, 1), r"\[\d+, 1\]"),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("which", [0, -1])
def test_what_cannot_be_written_is_refused_before_anything_is(
    tmp_path: Path, what: str, which: int
) -> None:
    a, b = (make_checkpoint(tmp_path / str(seed), seed=seed) for seed in (1, 2))
    model, (change, says) = rollout(a), WRONG[what]
    before = {name: live.clone() for name, live in model.state_dict().items()}
    sent: dict[str, Any] = dict(tensors(b))
    name = list(sent)[which]
    sent[name] = change(sent[name])
    with pytest.raises(UpdateRejected, match=says) as refused:
        model.load_weights(sent)
    assert name in str(refused.value)
    assert all(torch.equal(live, before[name]) for name, live in model.state_dict().items())
    model.load_weights(tensors(b))
