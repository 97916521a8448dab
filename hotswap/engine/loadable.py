"""Whether a directory is a checkpoint that the embedded engine can load.

Rule: it is the plan of a start or of an update that decides, so that the answer cannot
be another one than theirs. Headers and configurations are read, and no weights: equal
tensors of tied names, and bytes that no disk can deliver, are found by the update itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from hotswap.counted import counted
from hotswap.engine.config import parse_config
from hotswap.engine.loading import build_model, choose_dtype
from hotswap.engine.model_plan import plan_model
from hotswap.errors import UpdateRejected
from hotswap.pulls.logged import held_checkpoint
from hotswap.stream.log import check_plain
from hotswap.types import Scope
from hotswap.weights.checkpoint import Checkpoint

__all__ = ["Loadable", "check_checkpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loadable:
    """What a loadable checkpoint has. ``ignored`` tensors would not be loaded."""

    architecture: str
    dtype: str
    tensors: int
    bytes: int
    ignored: tuple[str, ...] = ()

    def __str__(self) -> str:
        ignored = f", {len(self.ignored)} ignored" if self.ignored else ""
        return (
            f"loadable: {self.architecture}, {self.dtype}, "
            f"{counted(self.tensors, 'tensor')}{ignored}, {self.bytes / 1e6:.1f} MB"
        )


def check_checkpoint(
    directory: str | os.PathLike[str], *, model: str | os.PathLike[str] | None = None
) -> Loadable:
    """Check ``directory`` as an update of a server that serves ``model``; None: as a model
    to serve. What a log has beside the files of ``directory`` belongs to it. Blocks; any thread.

    Raises: UpdateRejected with everything that is wrong; its message names ``model``
    where that is what is wrong.
    """
    served = Path(directory if model is None else model)
    check_plain(served)  # no server starts on one whose files are behind what it holds
    with held_checkpoint(directory) as checkpoint:
        try:
            with Checkpoint.open(served) as live:
                config = parse_config(live.manifest.config or {})
            # Zeros take no memory until they are written, and nothing here writes any.
            loaded = build_model(
                config, dtype=choose_dtype("auto", config), device=torch.device("cpu")
            )
        except (UpdateRejected, ValueError) as error:
            raise UpdateRejected(
                f"{served} cannot be served by hotswap's own engine: {error}"
            ) from error
        plan = plan_model(loaded.target, checkpoint.manifest, Scope.FULL, live=config)
        return Loadable(
            architecture=config.architecture,
            dtype=str(config.dtype).removeprefix("torch."),
            tensors=len(plan.slots),
            bytes=sum(plan.sources[name].size_bytes for name in plan.slots),
            ignored=plan.skipped,
        )
