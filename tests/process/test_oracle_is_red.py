"""What the oracle is worth: with k and v exchanged in the name map it must fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotswap.engine.loading import LoadedModel
from hotswap.engine.model import CausalLm, fused_rules, padded_rows
from hotswap.testing.checkpoints import make_checkpoint
from hotswap.types import Scope
from hotswap.weights.checkpoint import Checkpoint
from hotswap.weights.mapping import FusedRule
from hotswap.weights.target import WeightTarget
from tests.process.evidence import PROMPTS, Evidence, assert_equal
from tests.process.in_process import load, logits_of, serving
from tests.process.reference import Reference

pytestmark = pytest.mark.process


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "a", seed=1)


@pytest.fixture
def b(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "b", seed=2)


def exchanged(model: CausalLm) -> LoadedModel:
    """The model behind a map that takes k for v and v for k."""
    qkv, gate_up = fused_rules(model.config)
    q, k, v = qkv.parts
    wrong = FusedRule(fused=qkv.fused, parts=(q, v, k))
    target = WeightTarget(model, fused=(wrong, gate_up), padded_rows=padded_rows(model))
    return LoadedModel(model=model, target=target)


async def fresh_evidence(directory: Path) -> Evidence:
    async with serving(load(directory)) as server:
        return await Evidence.of(server.client)


async def test_an_update_that_exchanges_k_and_v_is_unlike_a_fresh_server(a: Path, b: Path) -> None:
    fresh = await fresh_evidence(b)

    async with serving(exchanged(load(a).model)) as server:
        await server.client.update(b)
        swapped = await Evidence.of(server.client)

    with pytest.raises(AssertionError, match=r"layers\.0\.self_attn\.qkv_proj\.weight"):
        assert_equal(swapped, fresh)
    same_sums = Evidence(checksums=fresh.checksums, tokens=swapped.tokens)
    with pytest.raises(AssertionError, match="prompts answered unlike a fresh server"):
        assert_equal(same_sums, fresh)


async def test_a_server_that_always_exchanges_them_is_unlike_transformers(b: Path) -> None:
    """Equal to its own fresh server in everything: only the other judge finds it."""
    reference = Reference(b)
    loaded = exchanged(load(b).model)
    with Checkpoint.open(b) as checkpoint:
        plan = loaded.target.plan(checkpoint.manifest, Scope.FULL)
        for bucket in checkpoint.buckets():
            loaded.target.write(plan, bucket)
    loaded.target.finish()

    async with serving(loaded) as server:
        fresh = await Evidence.of(server.client)
        await server.client.update(b)
        assert_equal(await Evidence.of(server.client), fresh)

    worst = [
        (logits_of(loaded.model, prompt) - reference.logits(prompt)).abs().max().item()
        for prompt in PROMPTS
    ]
    assert min(worst) > 1e-2
