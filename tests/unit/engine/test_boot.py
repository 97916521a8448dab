"""What a server may boot from: the same rules as an update."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hotswap.cli import main
from hotswap.engine.loading import load_model
from hotswap.errors import UpdateRejected
from hotswap.testing.checkpoints import make_checkpoint
from hotswap.testing.tiny_tokenizer import EOS_ID, PAD_ID
from hotswap.weights.checkpoint import Checkpoint


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


def test_a_generation_configuration_is_read_with_the_rest(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "a")
    with Checkpoint.open(directory) as checkpoint:
        wanted = {"eos_token_id": EOS_ID, "pad_token_id": PAD_ID}
        assert checkpoint.manifest.generation_config == wanted
    (directory / "generation_config.json").unlink()
    with Checkpoint.open(directory) as checkpoint:
        assert checkpoint.manifest.generation_config is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"vocab_size": 10**13}, "vocab_size is 10000000000000, wanted a positive integer"),
        # Within every range, and more than any machine has.
        ({"vocab_size": 2**31 - 1, "hidden_size": 2**31 - 4}, "RuntimeError: "),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1}}, "rope_theta"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "factor is 0, wanted"),
        # Not finite once computed, and no single field is to blame.
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 5e-324}},
            "OverflowError: ",
        ),
    ],
)
def test_a_server_says_in_one_line_why_it_cannot_boot(
    change: dict[str, object], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = make_checkpoint(tmp_path / "a")
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert main(["serve", "--model", str(directory), "--port", "0", "--device", "cpu"]) == 1
    error = capsys.readouterr().err
    last = error.splitlines()[-1]
    assert last.startswith(f"hotswap serve: cannot load {directory}: ")
    assert says in last
    assert "Traceback" not in error
