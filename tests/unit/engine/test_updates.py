"""Writing and committing on the engine's thread, and which weights made each token."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

from hotswap.engine import EmbeddedEngine
from hotswap.errors import UpdateRejected
from hotswap.testing.checkpoints import make_checkpoint
from hotswap.types import Manifest, PauseMode, Scope, TensorSpec, WeightStamp
from hotswap.weights.checkpoint import Checkpoint
from tests.unit.engine.conftest import Make
from tests.unit.engine.driving import (
    Turnstile,
    chunks_of,
    generate_all,
    load_while_paused,
    logits_of,
    prompts,
    random_ids,
    submit,
    tokens_of,
)

PROMPT = [5, 6, 7, 8]


@pytest.mark.parametrize(
    "options",
    [
        {"arch": "llama", "tied": True, "attention_bias": True, "mlp_bias": True},
        {"arch": "qwen2", "shards": 3},
        {"arch": "qwen3", "vocab_size": 300},
        {"arch": "qwen3", "tied": True, "vocab_size": 300, "dtype": torch.bfloat16},
    ],
    ids=str,
)
async def test_swapped_equals_fresh(options: dict[str, Any], checkpoint: Make) -> None:
    a, b = checkpoint(**options), checkpoint(seed=1, **options)
    fresh: dict[Path, tuple[dict[str, str], list[list[int]]]] = {}
    for directory in (a, b):
        async with EmbeddedEngine.from_directory(directory) as engine:
            tokens = await generate_all(engine, prompts(6), max_new_tokens=10)
            fresh[directory] = await engine.checksums(), tokens
    sums_a, sums_b = fresh[a][0], fresh[b][0]
    parameters = {name for name in sums_a if "inv_freq" not in name}
    assert all(sums_a[name] != sums_b[name] for name in parameters)
    assert fresh[a][1] != fresh[b][1]
    async with EmbeddedEngine.from_directory(a) as engine:
        for epoch, directory in enumerate((b, a, b), start=1):
            await engine.pause(PauseMode.ABORT)
            await load_while_paused(engine, directory, WeightStamp(epoch=epoch))
            await engine.resume()
            tokens = await generate_all(engine, prompts(6), max_new_tokens=10)
            assert (await engine.checksums(), tokens) == fresh[directory]
            assert engine.stamp == WeightStamp(epoch=epoch)


@pytest.mark.parametrize("mode", [PauseMode.RETRACT, PauseMode.IN_PLACE])
async def test_each_token_is_stamped_with_the_weights_that_made_it(
    mode: PauseMode, checkpoint: Make
) -> None:
    labelled = [checkpoint(label=label) for label in range(2)]
    async with EmbeddedEngine.from_directory(labelled[0], max_running_requests=4) as engine:
        gate = Turnstile(engine, passes=1)
        open_ones = [
            submit(engine, ids, rid=str(n), max_new_tokens=40) for n, ids in enumerate(prompts(6))
        ]
        for epoch in range(1, 8):
            await gate.reached()
            pausing = asyncio.ensure_future(engine.pause(mode))
            await anyio.lowlevel.checkpoint()
            gate.open()
            await pausing
            await load_while_paused(engine, labelled[epoch % 2], WeightStamp(epoch=epoch))
            gate = Turnstile(engine, passes=epoch + 1)
            await engine.resume()
        gate.open()
        ended = [await chunks_of(generation) for generation in open_ones]
    for chunks in ended:
        assert len(tokens_of(chunks)) == 40
        for chunk in chunks:
            assert chunk.token_id is not None
            assert chunk.token_id % 2 == chunk.stamp.epoch % 2
        epochs = [chunk.stamp.epoch for chunk in chunks]
        assert epochs == sorted(epochs)
    # The pass that was held still ran under the old weights.
    epochs = [chunk.stamp.epoch for chunk in ended[0]]
    assert [epochs.count(epoch) for epoch in range(7)] == [2, 3, 4, 5, 6, 7, 8]


async def test_writes_need_a_pause(checkpoint: Make) -> None:
    b = checkpoint(arch="qwen3", seed=1)
    async with EmbeddedEngine.from_directory(checkpoint(arch="qwen3")) as engine:
        before = await engine.checksums()
        with pytest.raises(RuntimeError, match="write while the gate is open; pause"):
            await load_while_paused(engine, b, WeightStamp(epoch=1))
        with pytest.raises(RuntimeError, match="commit while the gate is open; pause"):
            await engine.commit(WeightStamp(epoch=1))
        gate = Turnstile(engine, passes=2)
        generation = submit(engine, PROMPT, max_new_tokens=9)
        await gate.reached()
        pausing = asyncio.ensure_future(engine.pause(PauseMode.WAIT))
        committing = asyncio.ensure_future(engine.commit(WeightStamp(epoch=1)))
        await anyio.lowlevel.checkpoint()
        gate.open()
        with pytest.raises(RuntimeError, match="commit while the gate is draining"):
            await committing
        await pausing
        await chunks_of(generation)
        assert await engine.checksums() == before
        assert engine.stamp == WeightStamp()


async def test_writing_one_bucket_twice_is_writing_it_once(checkpoint: Make) -> None:
    a, b = checkpoint(arch="qwen3"), checkpoint(arch="qwen3", seed=1)
    async with EmbeddedEngine.from_directory(b) as fresh:
        wanted = await fresh.checksums()
    async with EmbeddedEngine.from_directory(a) as engine:
        await engine.pause(PauseMode.ABORT)
        for _ in range(2):
            await load_while_paused(engine, b, WeightStamp(epoch=1))
        assert await engine.checksums() == wanted


async def test_live_parameters_keep_their_addresses(checkpoint: Make) -> None:
    a, b = checkpoint(tied=True), checkpoint(tied=True, seed=1)
    async with EmbeddedEngine.from_directory(a) as engine:
        before = {name: p.data_ptr() for name, p in engine.model.named_parameters()}
        await engine.pause(PauseMode.ABORT)
        await load_while_paused(engine, b, WeightStamp(epoch=1))
        assert {name: p.data_ptr() for name, p in engine.model.named_parameters()} == before
        assert engine.model.lm_head.weight is engine.model.model.embed_tokens.weight


async def test_padded_rows_stay_zero_and_are_never_emitted(checkpoint: Make) -> None:
    a, b = checkpoint(vocab_size=300), checkpoint(vocab_size=300, seed=1)
    async with EmbeddedEngine.from_directory(a, vocab_multiple=128) as engine:
        assert engine.manifest()["lm_head.weight"].shape == (300, 64)
        for epoch, directory in enumerate((b, a), start=1):
            await engine.pause(PauseMode.ABORT)
            await load_while_paused(engine, directory, WeightStamp(epoch=epoch))
            await engine.resume()
            for name in ("model.embed_tokens.weight", "lm_head.weight"):
                live = engine.model.get_parameter(name)
                assert live.shape == (384, 64)
                assert live[300:].count_nonzero() == 0
                assert live[:300].count_nonzero() == 300 * 64
            drawn = await generate_all(engine, prompts(4), max_new_tokens=50, temperature=9.0)
            assert max(max(tokens) for tokens in drawn) < 300
    padded, exact = (
        EmbeddedEngine.from_directory(a, vocab_multiple=multiple).model for multiple in (128, 1)
    )
    ids = random_ids(9)
    torch.testing.assert_close(logits_of(padded, ids), logits_of(exact, ids), atol=1e-4, rtol=0)


async def test_weights_are_read_by_either_name(engine: EmbeddedEngine, checkpoint: Make) -> None:
    with Checkpoint.open(checkpoint(arch="qwen3")) as source:
        tensors = {name: payload for bucket in source.buckets() for name, payload in bucket}
        for name in ("model.layers.0.self_attn.k_proj.weight", "model.norm.weight"):
            payload = tensors[name]
            assert not isinstance(payload, torch.Tensor)
            wanted = torch.empty(payload.spec.shape)
            payload.read_into(wanted)
            assert torch.equal(await engine.read_weight(name, 7), wanted[:7])
    fused = await engine.read_weight("model.layers.0.self_attn.qkv_proj.weight", 10_000)
    assert fused.shape == (4 * 32 + 2 * 2 * 32, 64)
    with pytest.raises(KeyError, match="nonsense"):
        await engine.read_weight("nonsense", 1)


def config_of(directory: Path, **changes: object) -> dict[str, object]:
    content: dict[str, object] = json.loads((directory / "config.json").read_text())
    return content | changes


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_hidden_layers": 3}, "num_layers is 3, wanted 2"),
        ({"hidden_size": 128}, "hidden_size is 128, wanted 64"),
        ({"num_attention_heads": 8}, "num_attention_heads is 8, wanted 4"),
        ({"num_key_value_heads": 4}, "num_kv_heads is 4, wanted 2"),
        ({"head_dim": 16}, "head_dim is 16, wanted 32"),
        ({"vocab_size": 321}, "vocab_size is 321, wanted 320"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True, wanted False"),
        ({"intermediate_size": 64}, "intermediate_size is 64, wanted 128"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-05, wanted 1e-06"),
        ({"rope_parameters": {"rope_theta": 5.0}}, "rope_theta is 5.0, wanted 10000.0"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
            "rope_type is linear, wanted default; factor is 2.0, wanted 1.0",
        ),
        (
            # Beside the rope_parameters that the checkpoint has: it wins, as in transformers.
            {"rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": 5.0}},
            "rope_type is linear, wanted default; rope_theta is 5.0, wanted 10000.0; factor is 2.0",
        ),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
    ],
)
async def test_another_configuration_is_refused_by_name(
    change: dict[str, object], named: str, engine: EmbeddedEngine, checkpoint: Make
) -> None:
    directory = checkpoint(arch="qwen3")
    with Checkpoint.open(directory) as source:
        specs = source.manifest.tensors
    manifest = Manifest.of(specs, config=config_of(directory, **change))
    with pytest.raises(UpdateRejected, match=named.replace(".", r"\.")):
        engine.plan(manifest, Scope.FULL)


async def test_the_spelling_of_a_configuration_is_free(
    engine: EmbeddedEngine, checkpoint: Make
) -> None:
    old = checkpoint(arch="qwen3", old_style=True, dtype=torch.bfloat16)
    with Checkpoint.open(old) as source:
        plan = engine.plan(source.manifest, Scope.FULL)
    assert set(plan.specs) == set(engine.manifest().names)
    assert plan.unknown == ()


async def test_rotary_frequencies_of_old_checkpoints_are_skipped(
    engine: EmbeddedEngine, checkpoint: Make
) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    extra = TensorSpec(name=name, dtype=torch.float32, shape=(16,))
    manifest = Manifest.of([*engine.manifest().tensors, extra])
    assert engine.plan(manifest, Scope.FULL).unknown == (name,)
    unknown = TensorSpec(name="model.extra", dtype=torch.float32, shape=(16,))
    with pytest.raises(UpdateRejected, match=r"model\.extra"):
        engine.plan(Manifest.of([*engine.manifest().tensors, unknown]), Scope.FULL)


def with_eos(directory: Path, config: object, generation: object) -> Path:
    """A checkpoint of another seed with these ends of text; ``...`` is no such file."""
    make_checkpoint(directory, arch="qwen3", seed=1)
    path = directory / "config.json"
    path.write_text(json.dumps(config_of(directory, eos_token_id=config)))
    path = directory / "generation_config.json"
    path.unlink()
    if generation is not ...:
        path.write_text(json.dumps({"eos_token_id": generation}))
    return directory


@pytest.mark.parametrize(
    ("config", "generation", "wanted"),
    [
        (7, ..., {7}),
        (None, [8, 9], {8, 9}),
        ([7], 8, {7, 8}),
        (None, ..., set()),
    ],
)
async def test_ends_of_text_are_those_of_a_fresh_server(
    config: object, generation: object, wanted: set[int], checkpoint: Make, tmp_path: Path
) -> None:
    b = with_eos(tmp_path, config, generation)
    async with EmbeddedEngine.from_directory(b) as fresh:
        described = fresh.describe()
    assert described["eos_token_ids"] == sorted(wanted)
    async with EmbeddedEngine.from_directory(checkpoint(arch="qwen3")) as engine:
        await engine.pause(PauseMode.ABORT)
        await load_while_paused(engine, b, WeightStamp(epoch=1))
        assert engine.describe()["eos_token_ids"] == described["eos_token_ids"]


async def test_a_running_request_keeps_its_ends_of_text(checkpoint: Make, tmp_path: Path) -> None:
    a = checkpoint(arch="qwen3")
    async with EmbeddedEngine.from_directory(with_eos(tmp_path / "none", None, ...)) as fresh:
        first, second, third = (await generate_all(fresh, [PROMPT], max_new_tokens=3))[0]
    assert first not in (second, third)
    b = with_eos(tmp_path / "b", first, ...)
    async with EmbeddedEngine.from_directory(a) as engine:
        await engine.pause(PauseMode.RETRACT)
        before = submit(engine, PROMPT, rid="before", max_new_tokens=3, ignore_eos=False)
        await load_while_paused(engine, b, WeightStamp(epoch=1))
        after = submit(engine, PROMPT, rid="after", max_new_tokens=3, ignore_eos=False)
        await engine.resume()
        assert len(tokens_of(await chunks_of(before))) == 3
        ended = await chunks_of(after)
    assert [(chunk.token_id, chunk.matched_stop) for chunk in ended] == [(first, first)]


async def test_ends_of_text_stay_where_nothing_was_committed(
    checkpoint: Make, tmp_path: Path
) -> None:
    b = with_eos(tmp_path, 7, ...)
    async with EmbeddedEngine.from_directory(checkpoint(arch="qwen3")) as engine:
        booted = engine.describe()["eos_token_ids"]
        await engine.pause(PauseMode.ABORT)
        with Checkpoint.open(b) as source:
            plan = engine.plan(source.manifest, Scope.FULL)
            for bucket in source.buckets():
                await engine.write(plan, bucket)
            assert engine.describe()["eos_token_ids"] == booted
            # A source without a configuration says nothing about them.
            silent = engine.plan(Manifest.of(source.manifest.tensors), Scope.FULL)
            for bucket in source.buckets():
                await engine.write(silent, bucket)
        await engine.commit(WeightStamp(epoch=1))
        assert engine.describe()["eos_token_ids"] == booted


@pytest.mark.parametrize("odd", ["x", [1.5], {}, [True]])
async def test_odd_ends_of_text_are_refused(
    odd: object, engine: EmbeddedEngine, tmp_path: Path
) -> None:
    with (
        Checkpoint.open(with_eos(tmp_path, 7, odd)) as source,
        pytest.raises(UpdateRejected, match=r"generation_config\.json: eos_token_id is"),
    ):
        engine.plan(source.manifest, Scope.FULL)
