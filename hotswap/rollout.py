"""The rollout side of an RLHF trainer: live parameters, and what training calls them.

The names are those of FastDeploy's ``rollout_config`` and ``rollout_model``, so that
trainers written for them need one import changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from hotswap.engine.loading import LoadedModel, load_model
from hotswap.engine.model import fused_rules, padded_rows
from hotswap.errors import UpdateRejected
from hotswap.types import Manifest, Scope, TensorSpec
from hotswap.weights.casting import why_not_plain
from hotswap.weights.slots import Catalogue, survey

__all__ = ["RolloutModel", "RolloutModelConfig"]

_SHOWN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutModelConfig:
    """Which model a trainer rolls out with, and how its weights are to arrive.

    ``load_strategy`` and ``dynamic_load_weight`` say what the trainer's server does; the
    model itself takes new weights through ``RolloutModel.load_weights`` whatever they are.
    Raises: ValueError for what one process cannot do.
    """

    model_name_or_path: str
    max_model_len: int = 32768
    tensor_parallel_size: int = 1
    dynamic_load_weight: bool = True
    load_strategy: str = "ipc_snapshot"
    dtype: str = "auto"
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.tensor_parallel_size != 1:
            raise ValueError(
                f"tensor_parallel_size is {self.tensor_parallel_size}, wanted 1: a rollout model "
                "holds all of its weights in one process; start one for each replica"
            )
        if not self.dynamic_load_weight:
            raise ValueError(
                "dynamic_load_weight is False, and a model whose weights stay needs no mapping; "
                "leave it out or set it to True"
            )
        if not isinstance(self.max_model_len, int) or self.max_model_len < 1:
            raise ValueError(
                f"max_model_len is {self.max_model_len!r}, wanted how many tokens a text may have, "
                "1 or more; leave it out if the trainer does not limit it"
            )

    def initialize(self) -> Self:
        """Check that there is such a model. Raises: ValueError."""
        if not Path(self.model_name_or_path).is_dir():
            raise ValueError(
                f"model_name_or_path {self.model_name_or_path} is no directory, wanted that of a "
                "checkpoint: nothing is downloaded here"
            )
        return self


class RolloutModel:
    """A model of the embedded engine, under the names of both sides.

    Raises: ValueError for a directory that is none, or a model that the engine does not
    run; UpdateRejected for a checkpoint that is not whole.
    """

    def __init__(self, config: RolloutModelConfig) -> None:
        self.config: RolloutModelConfig = config.initialize()
        self._loaded: LoadedModel = load_model(
            Path(config.model_name_or_path), dtype=config.dtype, device=config.device
        )

    def __repr__(self) -> str:
        return f"<RolloutModel {self.config.model_name_or_path} {self._loaded.target!r}>"

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Every live parameter by its inference name: views that share the model's memory.

        Rows that only pad a vocabulary are left out, so that shapes are those of training.
        """
        return {
            name: live if region.true_rows is None else live[: region.true_rows]
            for region in self._catalogue().regions
            for live in [region.tensor.detach()]
            for name in region.names
        }

    def get_name_mappings_to_training(
        self, trainer_degree: int | None = None
    ) -> dict[str, str | list[str]]:
        """Inference name -> training name; several for a fused parameter, its rows in order.

        The names are those of a Hugging Face checkpoint, whatever ``trainer_degree`` is.
        Parameters that are tied have the training name of the one that a checkpoint has.
        """
        catalogue = self._catalogue()
        mapping: dict[str, str | list[str]] = {}
        for region in catalogue.regions:
            parts = [slot.spec.name for slot in catalogue.required if slot.region is region]
            for name in region.names:
                mapping[name] = parts[0] if len(parts) == 1 else parts
        return mapping

    def load_weights(
        self, weights: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]
    ) -> None:
        """Write every weight in place, under its training name; all of them at once.

        Nothing may run the model meanwhile. Raises: UpdateRejected, with everything that
        is wrong and nothing written, when they are not exactly those of the model.
        """
        given = list(weights.items() if isinstance(weights, Mapping) else weights)
        _check_plain(given)
        manifest = Manifest.of(
            TensorSpec(name=name, dtype=tensor.dtype, shape=tuple(tensor.shape))
            for name, tensor in given
        )
        target = self._loaded.target
        target.write(target.plan(manifest, Scope.FULL), given)
        target.finish()

    def _catalogue(self) -> Catalogue:
        model = self._loaded.model
        return survey(model, fused=fused_rules(model.config), padded_rows=padded_rows(model))


def _check_plain(given: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raises: UpdateRejected for what is no tensor with memory and plain elements.

    Before anything is written: a tensor without memory would be found when others are live.
    """
    wrong = [f"{name} is {fault}" for name, tensor in given if (fault := _not_plain(tensor))]
    if wrong:
        raise UpdateRejected(
            f"{len(wrong)} of the weights cannot be written: {'; '.join(wrong[:_SHOWN])}; send "
            "dense tensors with memory, tensor.to_dense() or full_tensor(), and all of them again"
        )


def _not_plain(tensor: object) -> str | None:
    if not isinstance(tensor, torch.Tensor):
        return f"a {type(tensor).__name__}"
    return why_not_plain(tensor)
