"""Which files of a directory are the checkpoint.

The first of these that exists decides, and no other file's tensors are read:

1. ``model.safetensors.index.json`` and the shards that it names
2. ``model.safetensors``, when no other ``*.safetensors`` holds one of its tensors
3. every other ``*.safetensors``, when no two hold the same tensor
4. ``pytorch_model.bin.index.json`` and the shards that it names
5. ``pytorch_model.bin``, when no ``*.pt`` holds one of its tensors
6. every ``*.pt``, when no two hold the same tensor

Where an index exists, only the index decides which tensor comes from which file. An
index beside a single file that it does not name is refused: readers of such a
directory differ about which of the two counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hotswap.errors import UpdateRejected
from hotswap.weights.incomplete import incomplete
from hotswap.weights.readable import AnyFolder

__all__ = ["Layout", "find_layout"]

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The files to read, in order, and the index's word on each tensor (None: no index).

    ``rivals`` are not read, and must not hold a tensor of one that is.
    """

    files: tuple[str, ...]
    file_of: Mapping[str, str] | None = None
    rivals: tuple[str, ...] = ()

    @property
    def is_safetensors(self) -> bool:
        """Whether the files are safetensors; else they are for ``torch.load``."""
        return self.files[0].endswith(".safetensors")


def find_layout(folder: AnyFolder) -> Layout:
    """Look at names and at the index only.

    Raises: UpdateRejected when there are no weights, or shards of a set are missing.
    """
    names = folder.names()
    for single, suffix in (("model.safetensors", ".safetensors"), ("pytorch_model.bin", ".pt")):
        index = f"{single}.index.json"
        if index in names:
            layout = _indexed(folder, index, suffix=single[single.rindex(".") :])
            if single in names and single not in layout.files:
                # Loaders disagree about which of the two counts, and one is a leftover.
                raise UpdateRejected(
                    f"{folder.path}: {single} and {index}, which does not name it, are both "
                    "there, wanted one of them; remove the older"
                )
            return layout
        loose = tuple(sorted(name for name in names if name.endswith(suffix)))
        if single in names:
            return Layout(files=(single,), rivals=tuple(name for name in loose if name != single))
        if loose:
            _check_shard_sets(folder, loose)
            return Layout(files=loose)
    raise UpdateRejected(
        f"{folder.path}: no weights; wanted model.safetensors, shards with "
        "model.safetensors.index.json, pytorch_model.bin or *.pt"
    )


def _indexed(folder: AnyFolder, index: str, *, suffix: str) -> Layout:
    weight_map = folder.read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UpdateRejected(f"{index}: weight_map names 0 tensors, wanted name: file for each")
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or not file.endswith(suffix):
            raise UpdateRejected(
                f"{index}: tensor {tensor!r} is mapped to {file!r}, wanted a *{suffix} file name"
            )
    return Layout(files=tuple(sorted(set(weight_map.values()))), file_of=weight_map)


def _check_shard_sets(folder: AnyFolder, files: tuple[str, ...]) -> None:
    present = Counter(
        match.group("stem", "count") for match in map(_SHARD.fullmatch, files) if match
    )
    for (stem, count), seen in present.items():
        if seen != int(count):
            raise incomplete(
                f"{folder.path}: {seen} of {int(count)} shards {stem}-*-of-{count} are there"
            )
