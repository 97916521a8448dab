"""A source against the live model: its configurations first, then every tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hotswap.engine.config import ModelConfig, differences, parse_config
from hotswap.engine.config_fields import Fields
from hotswap.errors import UpdateRejected
from hotswap.types import Manifest, Scope
from hotswap.weights.plan import TargetPlan
from hotswap.weights.target import WeightTarget

__all__ = ["ModelPlan", "generation_eos", "plan_model"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ModelPlan(TargetPlan):
    """Where every tensor goes, and which tokens end a text once they are live.

    ``eos_token_ids`` is None for a source without a configuration: they stay.
    """

    eos_token_ids: frozenset[int] | None


def plan_model(
    target: WeightTarget, manifest: Manifest, scope: Scope, *, live: ModelConfig
) -> ModelPlan:
    """Compare configurations where the source has one, then every tensor. Any thread.

    Raises: UpdateRejected with everything that is wrong.
    """
    eos = None if manifest.config is None else _checked_eos(manifest, manifest.config, live)
    plan = target.plan(manifest, scope)
    return ModelPlan(
        slots=plan.slots,
        specs=plan.specs,
        sources=plan.sources,
        ties=plan.ties,
        missing=plan.missing,
        skipped=plan.skipped,
        eos_token_ids=eos,
    )


def _checked_eos(
    manifest: Manifest, config: Mapping[str, object], live: ModelConfig
) -> frozenset[int]:
    try:
        seen = parse_config(config)
        eos = seen.eos_token_ids | generation_eos(manifest)
    except ValueError as error:
        raise UpdateRejected(f"the source's configuration: {error}") from error
    found = differences(seen, live)
    if found:
        raise UpdateRejected(
            f"the source's config.json describes another model: {'; '.join(found)}; "
            "send a checkpoint of the model that is served"
        )
    return eos


def generation_eos(manifest: Manifest) -> frozenset[int]:
    """End-of-sequence ids of ``generation_config.json``, where there is one.

    Raises: ValueError for odd ids in it.
    """
    return Fields(manifest.generation_config or {}, "generation_config.json").token_ids(
        "eos_token_id"
    )
