"""Checkpoints whose names transformers changes: what it makes of them is what is live."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hotswap_transformers import TransformersEngine
from hotswap_transformers.loading import LoadedModel, load_model
from safetensors.torch import load_file, save_file
from transformers import conversion_mapping
from transformers.core_model_loading import (
    Chunk,
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
)

from hotswap.errors import UpdateRejected
from hotswap.types import Manifest, Scope
from hotswap.weights.checkpoint import Checkpoint
from hotswap.weights.pieces import spec_of

_COMMON = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
_DENSE = {**_COMMON, "intermediate_size": 48, "max_position_embeddings": 128}
_GROUPED = {**_DENSE, "num_key_value_heads": 1, "head_dim": 16}
_EXPERTS = {"num_experts_per_tok": 2, "num_key_value_heads": 1}

ARCHITECTURES: Mapping[str, Mapping[str, object]] = {
    "gpt2": {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128},
    "gpt_neox": _DENSE,
    "phi": _DENSE,
    "gemma": _GROUPED,
    "mistral": _GROUPED,
    "qwen3": _GROUPED,
    "bert": {**_DENSE, "is_decoder": True},
    "mixtral": {**_DENSE, **_EXPERTS, "num_local_experts": 4},
    "granitemoe": {**_DENSE, **_EXPERTS, "num_local_experts": 4},
    "qwen2_moe": {
        **_DENSE,
        **_EXPERTS,
        "num_experts": 4,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
    },
}

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """What transformers saves of a tiny model, once for every architecture and seed."""
    root = tmp_path_factory.mktemp("saved")
    untyped: Any = transformers.utils.logging
    untyped.disable_progress_bar()

    def save(arch: str, seed: int) -> Path:
        path = root / f"{arch}-{seed}"
        if not path.is_dir():
            config = transformers.AutoConfig.for_model(arch, **ARCHITECTURES[arch])
            torch.manual_seed(seed)
            auto: Any = transformers.AutoModelForCausalLM
            model = auto.from_config(config)
            for weight in model.parameters():
                torch.nn.init.normal_(weight)
            model.save_pretrained(path)
        return path

    return save


def edited(source: Path, out: Path, change: Callable[[Tensors], Tensors]) -> Path:
    """A checkpoint with other tensors."""
    out.mkdir()
    (out / "config.json").write_bytes((source / "config.json").read_bytes())
    save_file(change(load_file(source / "model.safetensors")), out / "model.safetensors")
    return out


def update(loaded: LoadedModel, directory: Path) -> None:
    """Write all of a checkpoint into a model, as an engine does between two passes."""
    with Checkpoint.open(directory) as checkpoint:
        plan = loaded.target.plan(checkpoint.manifest, Scope.FULL)
        for bucket in checkpoint.buckets():
            loaded.target.write(plan, bucket)
        loaded.target.finish()


def state_of(model: Any) -> Tensors:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def fresh(directory: Path) -> Tensors:
    """What transformers itself makes of a checkpoint."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(directory)
    return state_of(model)


def assert_same(one: Tensors, other: Tensors) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_loaded_and_updated_it_is_what_transformers_makes_of_it(
    arch: str, saved: Callable[[str, int], Path]
) -> None:
    a, b = saved(arch, 1), saved(arch, 2)
    loaded = load_model(a, device="cpu")
    places = {name: weight.data_ptr() for name, weight in loaded.model.named_parameters()}
    assert_same(state_of(loaded.model), fresh(a))
    update(loaded, b)
    assert_same(state_of(loaded.model), fresh(b))
    assert {name: at.data_ptr() for name, at in loaded.model.named_parameters()} == places
    # What a full update has to bring, in the names of the checkpoint.
    names = set(load_file(b / "model.safetensors"))
    assert set(loaded.target.manifest().names) == names


@pytest.mark.parametrize(
    "arch",
    [
        arch if arch == "mixtral" else pytest.param(arch, marks=pytest.mark.long)
        for arch in ARCHITECTURES
        if arch != "bert"  # it generates nothing
    ],
)
async def test_updated_it_generates_what_transformers_does(
    arch: str, saved: Callable[[str, int], Path], drive: Any
) -> None:
    prompts = [[7], list(range(1, 40)), [(7 * number) % 90 for number in range(33)]]
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(saved(arch, 2))
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    wanted = []
    for ids in prompts:
        prompt = torch.tensor([ids])
        options = {"attention_mask": torch.ones_like(prompt), "do_sample": False}
        whole = model.eval().generate(prompt, **options, max_new_tokens=12)
        wanted.append(whole[0, len(ids) :].tolist())
    async with TransformersEngine.from_directory(
        saved(arch, 1), device="cpu", max_total_tokens=1024
    ) as engine:
        assert await drive.generate(engine, prompts, max_new_tokens=12) != wanted
        await drive.update(engine, saved(arch, 2), epoch=1)
        assert await drive.generate(engine, prompts, max_new_tokens=12) == wanted


def test_experts_come_one_by_one_and_in_any_part(saved: Callable[[str, int], Path]) -> None:
    loaded = load_model(saved("mixtral", 1), device="cpu")
    before, wanted = state_of(loaded.model), fresh(saved("mixtral", 2))
    tensors = load_file(saved("mixtral", 2) / "model.safetensors")
    # w3 of expert 2, and nothing else: the number says where, not the order.
    (name,) = [name for name in tensors if "layers.1." in name and name.endswith(".2.w3.weight")]
    manifest = Manifest.of([spec_of(name, tensors[name])])
    plan = loaded.target.plan(manifest, Scope.PARTIAL)
    loaded.target.write(plan, [(name, tensors[name])])
    live = "model.layers.1.mlp.experts.gate_up_proj"
    after = state_of(loaded.model)
    assert torch.equal(after[live][2, 48:], wanted[live][2, 48:])
    after[live][2, 48:] = before[live][2, 48:]
    assert_same(after, before)
    assert len(plan.missing) == len(loaded.target.manifest()) - 1
    assert torch.equal(loaded.target.read(name, 2), tensors[name][:2])


def test_an_expert_that_is_missing_or_too_many_is_refused(
    saved: Callable[[str, int], Path], tmp_path: Path
) -> None:
    source = saved("qwen2_moe", 1)
    loaded = load_model(source, device="cpu")
    name = "model.layers.0.mlp.experts.3.up_proj.weight"

    def without(tensors: Tensors) -> Tensors:
        del tensors[name]
        return tensors

    def with_a_fifth(tensors: Tensors) -> Tensors:
        return tensors | {name.replace(".3.", ".4."): tensors[name].clone()}

    before = state_of(loaded.model)
    short = edited(source, tmp_path / "short", without)
    with pytest.raises(UpdateRejected, match=f"1 missing: {name}"):
        update(loaded, short)
    with pytest.raises(UpdateRejected, match=r"missing: model\.layers\.0\.mlp\.experts\.gate_up"):
        load_model(short, device="cpu")
    fifth = edited(source, tmp_path / "fifth", with_a_fifth)
    with pytest.raises(UpdateRejected, match=r"1 such: model\.layers\.0\.mlp\.experts\.4\.up_proj"):
        update(loaded, fifth)
    assert_same(state_of(loaded.model), before)


def test_the_stacked_names_are_accepted_too(
    saved: Callable[[str, int], Path], tmp_path: Path
) -> None:
    loaded = load_model(saved("qwen2_moe", 1), device="cpu")
    wanted = fresh(saved("qwen2_moe", 2))
    live = edited(saved("qwen2_moe", 2), tmp_path / "live", lambda _: dict(wanted))
    update(loaded, live)
    assert_same(state_of(loaded.model), wanted)
    # Begun with those, a server takes the others as well.
    other = load_model(live, device="cpu")
    assert "model.layers.0.mlp.experts.gate_up_proj" in other.target.manifest()
    update(other, saved("qwen2_moe", 1))
    assert_same(state_of(other.model), fresh(saved("qwen2_moe", 1)))


@pytest.mark.parametrize("begin_with_it", [False, True])
def test_names_without_the_prefix_and_names_to_ignore(
    saved: Callable[[str, int], Path], tmp_path: Path, begin_with_it: bool
) -> None:
    def as_published(tensors: Tensors) -> Tensors:
        bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        return bare | {"h.0.attn.bias": torch.ones(1, 1, 128, 128)}

    bare = edited(saved("gpt2", 2), tmp_path / "bare", as_published)
    loaded = load_model(bare if begin_with_it else saved("gpt2", 1), device="cpu")
    update(loaded, bare)
    assert_same(state_of(loaded.model), fresh(bare))
    update(loaded, saved("gpt2", 1))
    assert_same(state_of(loaded.model), fresh(saved("gpt2", 1)))


def test_legacy_names_of_layer_norms(saved: Callable[[str, int], Path], tmp_path: Path) -> None:
    def as_they_were(tensors: Tensors) -> Tensors:
        return {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            ): tensor
            for name, tensor in tensors.items()
        }

    old = edited(saved("bert", 2), tmp_path / "old", as_they_were)
    assert any("gamma" in name for name in load_file(old / "model.safetensors"))
    loaded = load_model(saved("bert", 1), device="cpu")
    update(loaded, old)
    assert_same(state_of(loaded.model), fresh(old))


def test_a_head_that_is_tied_may_be_there_if_it_is_equal(
    saved: Callable[[str, int], Path], tmp_path: Path
) -> None:
    def with_head(factor: float) -> Callable[[Tensors], Tensors]:
        return lambda tensors: (
            tensors | {"lm_head.weight": tensors["transformer.wte.weight"] * factor}
        )

    equal = edited(saved("gpt2", 2), tmp_path / "equal", with_head(1.0))
    loaded = load_model(equal, device="cpu")
    assert_same(state_of(loaded.model), fresh(saved("gpt2", 2)))
    unequal = edited(saved("gpt2", 2), tmp_path / "unequal", with_head(2.0))
    with pytest.raises(UpdateRejected, match=r"wte\.weight and lm_head\.weight|one tensor"):
        load_model(unequal, device="cpu")


def test_a_router_that_is_kept_in_float32_stays_so(tmp_path: Path) -> None:
    fields = {
        **_DENSE,
        **_EXPERTS,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
    }
    config = transformers.AutoConfig.for_model("glm4_moe", **fields)
    auto: Any = transformers.AutoModelForCausalLM
    auto.from_config(config, dtype=torch.bfloat16).save_pretrained(tmp_path)
    loaded = load_model(tmp_path, device="cpu")
    state = state_of(loaded.model)
    assert_same(state, fresh(tmp_path))
    kept = {name.rpartition(".")[2] for name in state if state[name].dtype is torch.float32}
    assert "e_score_correction_bias" in kept
    assert state["lm_head.weight"].dtype is torch.bfloat16


# --- rules of transformers' table, tried on a model that needs none


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """transformers' table of conversions, to add to; as it was afterwards."""
    untyped: Any = conversion_mapping
    untyped.get_checkpoint_conversion_mapping("llama")
    cached = "_checkpoint_conversion_mapping_cache"
    copy = dict(getattr(conversion_mapping, cached))
    monkeypatch.setattr(conversion_mapping, cached, copy)
    return copy


MLP = "model.layers.{}.mlp.{}_proj.weight"


def split_rows(tensors: Tensors) -> Tensors:
    """Each down projection in two pieces of unequal size."""
    out = dict(tensors)
    for layer in range(2):
        whole = out.pop(MLP.format(layer, "down"))
        out[f"model.layers.{layer}.mlp.first.weight"] = whole[:20].clone()
        out[f"model.layers.{layer}.mlp.second.weight"] = whole[20:].clone()
    return out


def test_pieces_of_unequal_size_are_laid_below_each_other(
    saved: Callable[[str, int], Path], table: dict[str, list[Any]], tmp_path: Path
) -> None:
    table["mistral"] = [
        WeightConverter(
            source_patterns=["mlp.first.weight", "mlp.second.weight"],
            target_patterns="mlp.down_proj.weight",
            operations=[Concatenate(dim=0)],
        )
    ]
    a, b = (edited(saved("mistral", seed), tmp_path / str(seed), split_rows) for seed in (1, 2))
    loaded = load_model(a, device="cpu")
    update(loaded, b)
    assert_same(state_of(loaded.model), fresh(b))
    # A server that never saw the pieces can but take equal ones, and says so.
    other = load_model(saved("mistral", 1), device="cpu")
    with pytest.raises(UpdateRejected, match=r"first\.weight is \[20, 48\], wanted \[16, 48\]"):
        update(other, b)


@pytest.mark.parametrize(
    ("rule", "renamed"),
    [
        (
            WeightConverter(
                source_patterns="mlp.both.weight",
                target_patterns=["mlp.gate_proj.weight", "mlp.up_proj.weight"],
                operations=[Chunk(dim=0)],
            ),
            "both",
        ),
        (
            WeightConverter(
                source_patterns=["mlp.left.weight", "mlp.right.weight"],
                target_patterns="mlp.gate_proj.weight",
                operations=[Concatenate(dim=1)],
            ),
            "left",
        ),
        (
            WeightConverter(
                source_patterns="mlp.rows.*.weight",
                target_patterns="mlp.gate_proj.weight",
                operations=[MergeModulelist(dim=1)],
            ),
            "rows.0",
        ),
    ],
    ids=["cut", "beside", "stacked inside"],
)
def test_what_cannot_be_written_in_place_is_refused_by_name(
    saved: Callable[[str, int], Path],
    table: dict[str, list[Any]],
    tmp_path: Path,
    rule: Any,
    renamed: str,
) -> None:
    def change(tensors: Tensors) -> Tensors:
        tensors[f"model.layers.0.mlp.{renamed}.weight"] = tensors.pop(MLP.format(0, "gate"))
        return tensors

    table["mistral"] = [rule]
    odd = edited(saved("mistral", 2), tmp_path / "odd", change)
    with pytest.raises(UpdateRejected, match=rf"1 such: model\.layers\.0\.mlp\.{renamed}\.weight"):
        load_model(odd, device="cpu")


def test_a_chain_of_renamings(
    saved: Callable[[str, int], Path], table: dict[str, list[Any]], tmp_path: Path
) -> None:
    table["mistral"] = [
        WeightRenaming(r"^backbone\.", "model."),
        WeightRenaming(r"\.mlp\.w(\d)\.", r".mlp.w\1_proj."),
        WeightRenaming("w1_proj", "gate_proj"),
    ]

    def change(tensors: Tensors) -> Tensors:
        return {
            name.replace("model.", "backbone.").replace("gate_proj", "w1"): tensor
            for name, tensor in tensors.items()
        }

    odd = edited(saved("mistral", 2), tmp_path / "odd", change)
    loaded = load_model(odd, device="cpu")
    assert_same(state_of(loaded.model), fresh(saved("mistral", 2)))
    assert "backbone.layers.0.mlp.w1.weight" in loaded.target.manifest()
    assert json.loads((odd / "config.json").read_text())["model_type"] == "mistral"
    update(loaded, saved("mistral", 1))
    assert_same(state_of(loaded.model), fresh(saved("mistral", 1)))
