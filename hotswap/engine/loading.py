"""From a checkpoint directory to a live model, through the same door as an update."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import torch

from hotswap.engine.config import ModelConfig, parse_config
from hotswap.engine.model import VOCAB_MULTIPLE, CausalLm, fused_rules, padded_rows
from hotswap.engine.model_plan import generation_eos
from hotswap.pulls.logged import held_checkpoint
from hotswap.types import Scope
from hotswap.weights.target import WeightTarget
from hotswap.weights.ties import check_ties

__all__ = [
    "LoadedModel",
    "build_model",
    "choose_device",
    "choose_dtype",
    "load_model",
]

# Old checkpoints carry the rotary frequencies, which follow from the configuration.
_SKIPPED = ("rotary_emb.inv_freq",)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model, and the door to its weights.

    ``eos_token_ids`` end a text, besides those of the model's configuration.
    """

    model: CausalLm
    target: WeightTarget
    eos_token_ids: frozenset[int] = frozenset()


def choose_dtype(name: str | torch.dtype, config: ModelConfig) -> torch.dtype:
    """``auto`` is the checkpoint's own. Raises: ValueError for any other unknown name."""
    if isinstance(name, torch.dtype):
        return name
    if name == "auto":
        return config.dtype
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in known:
        raise ValueError(f"dtype {name!r} is unknown, wanted auto or one of {', '.join(known)}")
    return known[name]


def choose_device(name: str | torch.device) -> torch.device:
    """``auto`` is CUDA where there is one. Raises: ValueError for what is none, or not there."""
    has_cuda = torch.cuda.is_available()
    try:
        device = torch.device(("cuda" if has_cuda else "cpu") if name == "auto" else name)
    except RuntimeError as error:
        raise ValueError(f"device {name!r} is none, wanted auto, cpu, cuda or cuda:0") from error
    if device.type == "cuda" and not has_cuda:
        raise ValueError(f"device {name} was asked for, and torch sees no CUDA; use cpu or auto")
    return device


def build_model(
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    vocab_multiple: int = VOCAB_MULTIPLE,
) -> LoadedModel:
    """A model of zeros, and its target."""
    model = CausalLm(config, dtype=dtype, device=device, vocab_multiple=vocab_multiple).eval()
    target = WeightTarget(
        model, fused=fused_rules(config), padded_rows=padded_rows(model), skipped=_SKIPPED
    )
    return LoadedModel(model=model, target=target)


def load_model(
    directory: Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    vocab_multiple: int = VOCAB_MULTIPLE,
) -> LoadedModel:
    """Load a Hugging Face directory, or what pulls hold in one. Blocks; any thread.

    Raises: UpdateRejected for a checkpoint that is not whole, ValueError for a
    configuration that the engine does not run.
    """
    chosen = choose_device(device)
    load = partial(_load, directory, dtype=dtype, device=chosen, vocab_multiple=vocab_multiple)
    if chosen.type != "cpu":
        return load()
    # OpenMP's workers belong to the thread that first needed them, and stay as long as it
    # does. When there are more of them than cores, all wait for each other asleep: the
    # engine would decode a third slower for workers that never work again.
    with ThreadPoolExecutor(1, "hotswap-load") as thread:
        return thread.submit(load).result()


def _load(
    directory: Path, *, dtype: str | torch.dtype, device: torch.device, vocab_multiple: int
) -> LoadedModel:
    with held_checkpoint(directory) as checkpoint:
        config = parse_config(checkpoint.manifest.config or {})
        eos = generation_eos(checkpoint.manifest)
        loaded = build_model(
            config,
            dtype=choose_dtype(dtype, config),
            device=device,
            vocab_multiple=vocab_multiple,
        )
        plan = loaded.target.plan(checkpoint.manifest, Scope.FULL)
        check_ties(plan, dict(chain.from_iterable(checkpoint.buckets())))
        for bucket in checkpoint.buckets():
            loaded.target.write(plan, bucket)
    loaded.target.finish()
    return replace(loaded, eos_token_ids=eos)
