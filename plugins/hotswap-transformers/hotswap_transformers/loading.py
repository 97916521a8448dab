"""From a checkpoint directory to a live model, through the same door as an update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.core_model_loading import build_glob_alternation

from hotswap.engine.config_fields import Fields
from hotswap.engine.loading import choose_device
from hotswap.engine.model_plan import ModelPlan, generation_eos
from hotswap.errors import UpdateRejected
from hotswap.pulls.logged import held_checkpoint
from hotswap.types import Manifest, Scope
from hotswap.weights.target import WeightTarget
from hotswap.weights.ties import check_ties
from hotswap_transformers.naming import TransformersNaming

__all__ = ["LoadedModel", "load_model", "plan_model"]

# What may differ between two checkpoints of one model: it changes no forward pass.
_FREE = (
    "_name_or_path",
    "architectures",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "pad_token_id",
    "torch_dtype",
    "transformers_version",
    "use_cache",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A ``PreTrainedModel``, the door to its weights, and the tokens that end a text.

    ``config`` are the fields of its configuration, as they were before transformers ran
    the model, which changes some of them.
    """

    model: Any
    target: WeightTarget
    config: Mapping[str, object]
    eos_token_ids: frozenset[int]


def load_model(
    directory: Path, *, dtype: str | torch.dtype = "auto", device: str | torch.device = "auto"
) -> LoadedModel:
    """Load a Hugging Face directory, or what pulls hold in one. Blocks; any thread.

    Nothing is downloaded and no code of the checkpoint is run. Raises: UpdateRejected for
    a checkpoint that is not whole, or that cannot be written in place; ValueError for a
    configuration that transformers does not know.
    """
    with held_checkpoint(directory) as checkpoint:
        config = transformers.AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
        wanted = _dtype(dtype, config)
        # Its functions have no types.
        auto: Any = transformers.AutoModelForCausalLM
        with torch.device(choose_device(device)):
            model = auto.from_config(config, dtype=wanted, attn_implementation=_attention(config))
        _keep_precision(model, wanted)
        # The memory of the tensors is written in place from here on, never replaced.
        model.eval().requires_grad_(False)
        target = WeightTarget(model, naming=TransformersNaming(model, checkpoint.manifest))
        plan = target.plan(checkpoint.manifest, Scope.FULL)
        check_ties(plan, dict(chain.from_iterable(checkpoint.buckets())))
        for bucket in checkpoint.buckets():
            target.write(plan, bucket)
        target.finish()
        return LoadedModel(
            model=model,
            target=target,
            config=_fields(type(config), checkpoint.manifest.config or {}),
            eos_token_ids=_eos(checkpoint.manifest),
        )


def _attention(config: Any) -> str:
    """torch's own where the model can use it; nothing is fetched for another."""
    untyped: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    kind = untyped.get(type(config), None)
    return "sdpa" if getattr(kind, "_supports_sdpa", True) else "eager"


def _keep_precision(model: Any, dtype: torch.dtype) -> None:
    """Widen the weights that transformers keeps in another dtype than the rest."""
    kept = model._get_dtype_plan(dtype)
    if not kept:
        return
    pattern, name_of, _ = build_glob_alternation(list(kept))
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        match = pattern.search(name)
        if match is not None and match.lastgroup is not None:
            tensor.data = tensor.data.to(kept[name_of[match.lastgroup]])


def _dtype(name: str | torch.dtype, config: Any) -> torch.dtype:
    """``auto`` is the checkpoint's own. Raises: ValueError for an unknown name."""
    if isinstance(name, torch.dtype):
        return name
    if name == "auto":
        own = getattr(config, "dtype", None)
        return own if isinstance(own, torch.dtype) else torch.float32
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in known:
        raise ValueError(f"dtype {name!r} is unknown, wanted auto or one of {', '.join(known)}")
    return known[name]


def _fields(kind: Any, config: Mapping[str, object]) -> Mapping[str, object]:
    """Every field of a configuration, with the defaults of its class ``kind``."""
    fields: Mapping[str, object] = kind.from_dict(dict(config)).to_dict()
    return fields


def plan_model(
    target: WeightTarget, manifest: Manifest, scope: Scope, *, live: Mapping[str, object]
) -> ModelPlan:
    """Compare configurations where the source has one, then every tensor. Any thread.

    Raises: UpdateRejected with everything that is wrong.
    """
    eos = None
    if manifest.config is not None:
        _check_config(manifest.config, live, kind=type(target.module.config))
        try:
            eos = _eos(manifest)
        except ValueError as error:
            raise UpdateRejected(f"the source's configuration: {error}") from error
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


def _eos(manifest: Manifest) -> frozenset[int]:
    """Raises: ValueError for odd ids."""
    of_model = Fields(manifest.config or {}, "config.json").token_ids("eos_token_id")
    return of_model | generation_eos(manifest)


def _check_config(config: Mapping[str, object], live: Mapping[str, object], *, kind: Any) -> None:
    named = config.get("model_type")
    if named != live.get("model_type"):
        raise UpdateRejected(
            f"the source's config.json says model_type {named!r}, and {live.get('model_type')!r} "
            "is served; send a checkpoint of the model that is served"
        )
    try:
        seen = _fields(kind, config)
    except Exception as error:  # whatever the checks of a configuration class raise
        raise UpdateRejected(f"the source's config.json cannot be read: {error}") from error
    found = [
        f"{name} is {seen.get(name)!r}, {live.get(name)!r} is live"
        for name in sorted(live.keys() | seen.keys())
        if name not in _FREE and seen.get(name) != live.get(name)
    ]
    if found:
        raise UpdateRejected(
            f"the source's config.json describes another model: {'; '.join(found)}; "
            "send a checkpoint of the model that is served"
        )
