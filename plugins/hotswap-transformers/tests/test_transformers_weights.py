"""What is written, when, and what is refused: configurations, dtypes, ends of text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hotswap_transformers import TransformersEngine
from safetensors.torch import load_file, save_file

from hotswap.errors import UpdateRejected
from hotswap.types import PauseMode, Scope, TensorSpec, WeightStamp
from hotswap.weights.checkpoint import Checkpoint

LONG = list(range(1, 80))


async def test_weights_are_written_only_while_it_stands_still(drive: Any) -> None:
    async with drive.running() as engine:
        plan = engine.plan(engine.manifest(), Scope.FULL)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: engine.write(plan, []),
            lambda: engine.commit(WeightStamp()),
            lambda: engine.reset_weights(()),
        ]
        for call in calls:
            with pytest.raises(RuntimeError, match="pause the engine first"):
                await call()
        await engine.pause(PauseMode.IN_PLACE)
        before = await engine.checksums()
        assert "lm_head.weight" in await engine.reset_weights(("norm",))
        after = await engine.checksums()
    assert before["lm_head.weight"] != after["lm_head.weight"]
    assert before["model.norm.weight"] == after["model.norm.weight"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "qwen2"}, "model_type 'qwen2', and 'llama' is served"),
        ({"rms_norm_eps": 0.5}, "rms_norm_eps is 0.5, 1e-06 is live"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, "rope_parameters"),
        ({"hidden_size": "wide"}, "cannot be read"),
    ],
)
async def test_another_models_configuration_is_refused(
    drive: Any, tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    odd = tmp_path / "odd"
    shutil.copytree(drive.checkpoint(2), odd)
    config = json.loads((odd / "config.json").read_text()) | change
    (odd / "config.json").write_text(json.dumps(config))
    async with drive.running() as engine:
        with Checkpoint.open(odd) as checkpoint, pytest.raises(UpdateRejected, match=reason):
            engine.plan(checkpoint.manifest, Scope.FULL)


async def test_odd_ends_of_text_are_refused(drive: Any, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    shutil.copytree(drive.checkpoint(2), odd)
    (odd / "generation_config.json").write_text(json.dumps({"eos_token_id": "one"}))
    async with drive.running() as engine:
        with (
            Checkpoint.open(odd) as checkpoint,
            pytest.raises(UpdateRejected, match="the source's configuration: generation_config"),
        ):
            engine.plan(checkpoint.manifest, Scope.FULL)


async def test_ends_of_text_come_with_the_weights(drive: Any, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(drive.checkpoint(2), other)
    async with drive.running(seed=2) as engine:
        (whole,) = await drive.generate(engine, [LONG], max_new_tokens=8)
    end = whole[3]
    (other / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    async with drive.running() as engine:
        await drive.update(engine, other, epoch=1)
        chunks = await drive.chunks(drive.submit(engine, LONG, max_new_tokens=8, ignore_eos=False))
        assert drive.tokens(chunks) == whole[: whole.index(end) + 1]
        assert end in engine.describe()["eos_token_ids"]


def test_a_checkpoint_that_is_not_whole_is_refused_at_the_start(drive: Any, tmp_path: Path) -> None:
    short = tmp_path / "short"
    shutil.copytree(drive.checkpoint(1), short)
    tensors = load_file(short / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, short / "model.safetensors")
    with pytest.raises(UpdateRejected, match=r"model\.norm\.weight"):
        TransformersEngine.from_directory(short, device="cpu")


def test_dtypes_are_the_checkpoints_or_as_asked(drive: Any) -> None:
    half = drive.checkpoint(3, dtype=torch.bfloat16)
    own = TransformersEngine.from_directory(half, device="cpu", max_total_tokens=64)
    assert own.manifest()["lm_head.weight"].dtype is torch.bfloat16
    asked = TransformersEngine.from_directory(
        half, device="cpu", dtype="float32", max_total_tokens=64
    )
    spec = asked.manifest()["lm_head.weight"]
    assert spec == TensorSpec(name="lm_head.weight", dtype=torch.float32, shape=(320, 64))
    with pytest.raises(ValueError, match="dtype 'int4' is unknown"):
        TransformersEngine.from_directory(half, device="cpu", dtype="int4")
    for engine in (own, asked):
        engine.close()
