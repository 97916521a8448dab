"""What the index of a version says."""

from __future__ import annotations

from collections.abc import Mapping

from hotswap.stream.encodings import Encoding
from hotswap.stream.layout import spelled

__all__ = ["delta_index", "full_index"]


def delta_index(
    version: int,
    *,
    base: int,
    encoding: Encoding,
    checksum_format: str,
    weight_map: Mapping[str, str],
) -> dict[str, object]:
    """The index of a delta from ``base`` to ``version``."""
    return {
        "metadata": {
            "version": spelled(version),
            "base_version": spelled(base),
            "delta_encoding": str(encoding),
            "compression_format": "zstd",
            "checksum_format": checksum_format,
        },
        "weight_map": weight_map,
    }


def full_index(
    version: int, *, size_bytes: int, weight_map: Mapping[str, str]
) -> dict[str, object]:
    """The index of a full version: that of a checkpoint, and the version's number."""
    return {
        "metadata": {"version": spelled(version), "total_size": size_bytes},
        "weight_map": weight_map,
    }
