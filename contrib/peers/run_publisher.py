"""One rank of a peer's real publisher: ``python -m contrib.peers.run_publisher SPEC``.

``SPEC`` is JSON: tree, module, base, source, encoding, checksum, rank, world, store. Every rank
publishes the tensors that fall to it, version after version.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from contrib.peers.checkpoints import Tensors, states

__all__ = ["main"]


def main(spec: Mapping[str, Any]) -> None:
    """Publish what ``spec`` says."""
    torch.distributed.init_process_group(
        "gloo",
        init_method=Path(spec["store"]).as_uri(),
        rank=spec["rank"],
        world_size=spec["world"],
    )
    sys.path.insert(0, spec["tree"])
    module: Any = import_module(str(spec["module"]).replace("/", "."))
    weights = dict[str, torch.Tensor]()
    publisher = _publisher(module, spec, weights)
    publisher.connect_rollout_engines([], None)
    for tensors in states():
        weights |= _of_rank(tensors, spec["rank"], spec["world"])
        publisher.update_weights()
    torch.distributed.destroy_process_group()


def _publisher(module: Any, spec: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> Any:
    arguments = Namespace(
        update_weight_disk_dir=spec["source"],
        update_weight_delta_encoding=spec["encoding"],
        update_weight_delta_checksum=spec["checksum"],
        custom_update_weight_post_write_path=None,
        hf_checkpoint=spec["base"],
        pause_generation_mode="in_place",
        check_weight_update_equal=False,
        update_weight_local_checkpoint_dir=None,
    )
    # After all is published, it adds up byte counts on a GPU.
    if not torch.cuda.is_available():
        module.UpdateWeightFromDiskDelta._record_metrics = lambda self: None
    # slime asks the last of these for the weights, the miles of our stand-in the one before.
    return module.UpdateWeightFromDiskDelta(
        arguments, lambda: weights, lambda: weights, model_name="peers", quantization_config=None
    )


def _of_rank(tensors: Tensors, rank: int, world: int) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(tensors[name].copy()) for name in list(tensors)[rank::world]}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
