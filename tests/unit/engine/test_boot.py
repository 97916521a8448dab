"""What a server may boot from: the same rules as an update."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hotswap.engine.loading import load_model
from hotswap.errors import UpdateRejected
from hotswap.testing.checkpoints import make_checkpoint


def with_head(directory: Path, *, scale: float) -> Path:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone() * scale
    save_file(tensors, path)
    return directory


def test_a_tied_model_boots_with_an_equal_head(tmp_path: Path) -> None:
    directory = with_head(make_checkpoint(tmp_path / "a", tied=True), scale=1.0)
    model = load_model(directory, device="cpu").model
    assert model.lm_head.weight is model.model.embed_tokens.weight
    saved = load_file(directory / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(model.lm_head.weight[: len(saved)], saved)


def test_a_tied_model_does_not_boot_with_two_different_heads(tmp_path: Path) -> None:
    directory = with_head(make_checkpoint(tmp_path / "a", tied=True), scale=2.0)
    with pytest.raises(UpdateRejected, match=r"lm_head\.weight.*tied"):
        load_model(directory, device="cpu")
