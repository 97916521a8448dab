"""safetensors files byte by byte, so that tests can write the ones that no library would."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

__all__ = ["entry", "pack", "write_directory"]


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    """One tensor's header entry."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def pack(header: object, payload: bytes = b"", *, length: int | None = None) -> bytes:
    """A file from a header (JSON, or bytes as they are) and the tensors' bytes.

    ``length`` is what the file says about its header; the truth when None.
    """
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    says = len(text) if length is None else length
    return says.to_bytes(8, "little") + text + payload


def write_directory(
    directory: Path, files: Mapping[str, bytes], *, weight_map: object = None, config: str = "{}"
) -> Path:
    """A checkpoint directory of ``files``, with an index when ``weight_map`` is given."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(config)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    if weight_map is not None:
        index = json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map})
        (directory / "model.safetensors.index.json").write_text(index)
    return directory
