"""What a peer's publisher imports and does not need for publishing, in a few lines of our own.

Its own modules are read from its repository; ``torch.distributed`` is the real one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contrib.peers.sources import read

__all__ = ["PUBLISHERS", "Publisher"]

_RAY = {
    "ray/__init__.py": "def get(results):\n    return list(results)\n",
    "ray/actor.py": "class ActorHandle:\n    pass\n",
}
_GROUP = """
import torch.distributed

def get_gloo_group():
    return torch.distributed.group.WORLD
"""
_SLIME_BASE = """
class UpdateWeightFromDistributed:
    def __init__(self, args, model, weights_getter, *, model_name, quantization_config):
        self.args = args
        self.weights_getter = weights_getter
        self.weight_version = 0
        self.update_weight_metrics = {}

    def _iter_non_expert_chunks(self):
        yield list(self.weights_getter().items())

    def _iter_expert_chunks(self):
        return iter(())
"""
_SLIME_ACCELERATOR = """
import torch

def current_device():
    return torch.device("cpu")

def current_stream():
    return torch.cuda.current_stream()
"""
_MPU = """
def get_data_parallel_rank(with_context_parallel=False):
    return 0

def get_tensor_model_parallel_rank():
    return 0
"""
_MILES_MIXIN = """
class DistBucketedWeightUpdateMixin:
    def _init_lora(self, **options):
        pass

    def _gather_and_update_non_expert_weights(self, bucket_func, pbar=None):
        bucket_func(list(self.model().items()), pbar)

    def _gather_and_update_expert_weights(self, bucket_func, pbar=None):
        pass
"""
_MILES_PARALLEL = """
from types import SimpleNamespace

def get_parallel_state():
    first = SimpleNamespace(rank=0)
    return SimpleNamespace(intra_dp_cp=first, tp=first)
"""
_SLIME_AT = "slime/backends/megatron_utils/update_weight"
_MILES_AT = "miles/backends/megatron_utils/update_weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Publisher:
    """A peer's publisher: ``real`` are files of its repository, ``stand_ins`` ours."""

    module: str
    real: tuple[str, ...]
    stand_ins: Mapping[str, str]

    def lay_out(self, repository: Path, tree: Path) -> None:
        """Write the modules below ``tree``. Raises: FileNotFoundError."""
        texts = {path: read(repository, path) for path in self.real} | dict(self.stand_ins)
        for path, text in texts.items():
            place = tree / path
            place.parent.mkdir(parents=True, exist_ok=True)
            for package in place.relative_to(tree).parents:
                if package != Path():
                    (tree / package / "__init__.py").touch()
            place.write_text(text)


PUBLISHERS: Mapping[str, Publisher] = {
    "slime": Publisher(
        module=f"{_SLIME_AT}/update_weight_from_disk_delta",
        real=(f"{_SLIME_AT}/update_weight_from_disk_delta.py", "slime/utils/disk_delta.py"),
        stand_ins={
            **_RAY,
            "megatron/core/mpu.py": _MPU,
            "slime/utils/accelerator.py": _SLIME_ACCELERATOR,
            "slime/utils/distributed_utils.py": _GROUP,
            f"{_SLIME_AT}/update_weight_from_distributed.py": _SLIME_BASE,
        },
    ),
    "miles": Publisher(
        module=f"{_MILES_AT}/update_weight_from_distributed/delta",
        real=(
            f"{_MILES_AT}/update_weight_from_distributed/delta.py",
            "miles/utils/disk_delta.py",
        ),
        stand_ins={
            **_RAY,
            "tqdm/__init__.py": "def tqdm(**options):\n    return None\n",
            "miles/backends/training_utils/parallel.py": _MILES_PARALLEL,
            "miles/utils/distributed_utils.py": _GROUP,
            f"{_MILES_AT}/common.py": (
                "def _check_weight_sync_results(results, **options):\n    pass\n"
            ),
            f"{_MILES_AT}/update_weight_from_distributed/mixin.py": _MILES_MIXIN,
        },
    ),
}
