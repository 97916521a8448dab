"""The names that a payload may say, exactly; any other is refused where it stands.

A name is a word and nothing else: none is ever imported, looked up or called. The
record of a payload has the member of :class:`Known` in its place, or the dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import torch

from hotswap.weights.safetensors_header import DTYPES

__all__ = ["CLASSES", "Known", "hint", "known", "spelled"]


class Known(Enum):
    """Each name under the spelling that hotswap writes. No text, so that none passes for one."""

    TENSOR = "torch.Tensor"
    PARAMETER = "torch.nn.parameter.Parameter"
    SIZE = "torch.Size"
    UNTYPED_STORAGE = "torch.storage.UntypedStorage"
    TYPED_STORAGE = "torch.storage.TypedStorage"
    REBUILD_TENSOR = "torch.multiprocessing.reductions.rebuild_tensor"
    REBUILD_TYPED_STORAGE = "torch.multiprocessing.reductions.rebuild_typed_storage"
    REBUILD_STORAGE_FILENAME = "torch.multiprocessing.reductions.rebuild_storage_filename"
    REBUILD_STORAGE_EMPTY = "torch.multiprocessing.reductions.rebuild_storage_empty"
    REBUILD_CUDA_TENSOR = "torch.multiprocessing.reductions.rebuild_cuda_tensor"
    REBUILD_CUDA_TENSOR_BY_UUID = "sglang.srt.utils.patch_torch._rebuild_cuda_tensor_modified"
    METADATA = "sglang.srt.weight_sync.tensor_bucket.FlattenedTensorMetadata"
    BUCKET = "sglang.srt.weight_sync.tensor_bucket.FlattenedTensorBucket"
    LOCAL = "sglang.srt.model_executor.model_runner_components.weight_updater.LocalSerializedTensor"
    ENCODE = "_codecs.encode"
    RECONSTRUCTOR = "copyreg._reconstructor"
    OBJECT = "builtins.object"
    BYTES = "builtins.bytes"

    def __str__(self) -> str:
        return self.value


CLASSES = frozenset({Known.METADATA, Known.BUCKET, Known.LOCAL})
"""Names of which a payload may have instances, as a class with fields."""

_RUNNER = "sglang.srt.model_executor.model_runner"
_GR = "gr_inference.gr_serving.weight_ipc"

# Where the same thing stands in other versions of torch, sglang, Python and GR.
_ALIASES: Mapping[str, Known] = {
    "torch._tensor.Tensor": Known.TENSOR,
    "torch.nn.Parameter": Known.PARAMETER,
    "torch.UntypedStorage": Known.UNTYPED_STORAGE,
    "torch.TypedStorage": Known.TYPED_STORAGE,
    "sglang.srt.patch_torch._rebuild_cuda_tensor_modified": Known.REBUILD_CUDA_TENSOR_BY_UUID,
    f"{_GR}._rebuild_cuda_tensor_modified": Known.REBUILD_CUDA_TENSOR_BY_UUID,
    f"{_RUNNER}.FlattenedTensorMetadata": Known.METADATA,
    f"{_GR}.FlattenedTensorMetadata": Known.METADATA,
    f"{_RUNNER}.FlattenedTensorBucket": Known.BUCKET,
    f"{_GR}.FlattenedTensorBucket": Known.BUCKET,
    f"{_RUNNER}.LocalSerializedTensor": Known.LOCAL,
    f"{_GR}.LocalSerializedTensor": Known.LOCAL,
    "copy_reg._reconstructor": Known.RECONSTRUCTOR,
    "__builtin__.object": Known.OBJECT,
    "__builtin__.bytes": Known.BYTES,
}


def _split(name: str) -> tuple[str, str]:
    module, _, last = name.rpartition(".")
    return module, last


_KNOWN: Mapping[tuple[str, str], Known | torch.dtype] = {
    **{_split(name.value): name for name in Known},
    **{_split(alias): name for alias, name in _ALIASES.items()},
    **{_split(str(dtype)): dtype for dtype in DTYPES.values()},
}


def known(module: str, name: str) -> Known | torch.dtype | None:
    """What ``module.name`` stands for, or None for anything else. Nothing is looked up in torch."""
    return _KNOWN.get((module, name))


_FILE_SYSTEM = (
    "share tensors by name instead: torch.multiprocessing.set_sharing_strategy('file_system')"
)
_FORKING = "write it with ForkingPickler, as sglang does, or with hotswap.wire"
_HINTS: Mapping[tuple[str, str], str] = {
    ("torch.multiprocessing.reductions", "rebuild_storage_fd"): _FILE_SYSTEM,
    ("multiprocessing.resource_sharer", "DupFd"): _FILE_SYSTEM,
    ("torch._utils", "_rebuild_tensor_v2"): _FORKING,
    ("torch.storage", "_load_from_bytes"): _FORKING,
}


def hint(module: str, name: str) -> str:
    """What a sender that has used a name which is not known has to do instead."""
    return _HINTS.get((module, name), "send tensors alone")


def spelled(name: Known | torch.dtype) -> tuple[str, str]:
    """Module and name as a pickle writes them."""
    return _split(str(name))
