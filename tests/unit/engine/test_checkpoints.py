"""The checkpoints that tests are made of keep their promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from hotswap.engine import EmbeddedEngine
from hotswap.engine.loading import load_model
from hotswap.testing.checkpoints import make_checkpoint, make_labelled_checkpoint
from hotswap.testing.tiny_tokenizer import build_tokenizer
from tests.unit.engine.conftest import Make
from tests.unit.engine.driving import generate_all, logits_of, prompts, random_ids


def tensors_of(directory: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        found |= load_file(file)
    return found


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
async def test_seeds_differ_in_every_tensor_and_in_what_they_say(
    arch: str, tied: bool, checkpoint: Make
) -> None:
    said = []
    for seed in (0, 1):
        async with EmbeddedEngine.from_directory(
            checkpoint(arch=arch, tied=tied, seed=seed)
        ) as engine:
            said.append(await generate_all(engine, prompts(20), max_new_tokens=16))
    assert sum(a != b for a, b in zip(*said, strict=True)) >= 18
    # It wanders: no prompt gets the same answer, and few tokens repeat.
    assert len({tuple(tokens) for tokens in said[0]}) == 20
    assert sum(len(set(tokens)) for tokens in said[0]) / 20 > 10
    a, b = (tensors_of(checkpoint(arch=arch, tied=tied, seed=seed)) for seed in (0, 1))
    assert a.keys() == b.keys()
    assert not [name for name in a if torch.equal(a[name], b[name])]
    assert ("lm_head.weight" in a) is not tied


def test_shards_change_no_tensor(tmp_path: Path) -> None:
    one, many = make_checkpoint(tmp_path / "1"), make_checkpoint(tmp_path / "5", shards=5)
    whole, parts = tensors_of(one), tensors_of(many)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    index = json.loads((many / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(whole)
    assert len(set(index["weight_map"].values())) == 5
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in whole.values())


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
@pytest.mark.parametrize("label", range(3))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
async def test_a_labelled_model_says_only_its_own_tokens(
    arch: str, label: int, dtype: torch.dtype, checkpoint: Make
) -> None:
    directory = checkpoint(arch=arch, label=label, labels=3, dtype=dtype)
    model = load_model(directory, device="cpu").model
    own = torch.arange(320) % 3 == label
    for seed in range(5):
        logits = logits_of(model, random_ids(100, seed=seed, below=320))
        gap = logits[:, own].min(-1).values - logits[:, ~own].max(-1).values
        assert gap.min() > 40
    async with EmbeddedEngine.from_directory(directory, device="cpu") as engine:
        assert engine.describe()["eos_token_ids"] == []
        said = await generate_all(
            engine, prompts(6), max_new_tokens=20, ignore_eos=False, temperature=1.0, seed=1
        )
    assert all(token % 3 == label for tokens in said for token in tokens)
    assert [len(tokens) for tokens in said] == [20] * 6
    assert len({tuple(tokens) for tokens in said}) == 6
    assert len({token for tokens in said for token in tokens}) > 30


def test_the_tokenizer_is_one_that_transformers_loads(checkpoint: Make) -> None:
    text = "the other, Grüße, 日本 \n x"
    theirs = AutoTokenizer.from_pretrained(checkpoint())
    ours = build_tokenizer(320)
    ids = ours.encode(text).ids
    assert theirs(text)["input_ids"] == ids
    assert len(ids) < len(text.encode())
    assert theirs.decode(ids) == text
    assert theirs.eos_token_id == 256


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"arch": "gpt2"}, "arch 'gpt2' is unknown"),
        ({"arch": "qwen2", "attention_bias": True}, "biases"),
        ({"arch": "qwen3", "mlp_bias": True}, "biases"),
        ({"shards": 0}, "shards is 0"),
        ({"shards": 1000}, "shards is 1000"),
        ({"vocab_size": 100}, "vocab_size 100 is too small"),
    ],
)
def test_what_cannot_be_made_is_named(options: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=named):
        make_checkpoint(tmp_path, **options)


def test_a_label_is_one_of_the_labels(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="label 2 is out of range, wanted 0 to 1"):
        make_labelled_checkpoint(tmp_path, label=2)
