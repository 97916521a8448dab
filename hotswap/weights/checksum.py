"""One checksum for a tensor's bytes, whatever its strides and wherever it lies."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import xxhash

from hotswap.weights.casting import why_not_plain

__all__ = ["checksum"]

_PIECE_BYTES = 16 * 2**20


def checksum(tensor: torch.Tensor) -> str:
    """xxh3-64, as 16 hex digits, of the elements in row-major order.

    Copies at most 16 MiB at a time, and nothing of a contiguous CPU tensor.
    Raises: ValueError for a tensor that has no plain bytes.
    """
    reason = why_not_plain(tensor)
    if reason is not None:
        raise ValueError(f"no checksum for a tensor that is {reason}; wanted plain dense memory")
    digest = xxhash.xxh3_64()
    for piece in _pieces(tensor.detach()):
        plain = piece.cpu().contiguous()
        # view(-1) of a lone element may keep an odd stride.
        flat = plain.as_strided((plain.numel(),), (1,))
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if not tensor.numel():
        return
    whole = tensor.device.type == "cpu" and tensor.is_contiguous()
    if whole or tensor.nbytes <= _PIECE_BYTES:
        yield tensor
        return
    row_bytes = tensor.nbytes // tensor.shape[0]
    if row_bytes > _PIECE_BYTES:
        for row in tensor:
            yield from _pieces(row)
        return
    rows = _PIECE_BYTES // row_bytes
    for start in range(0, tensor.shape[0], rows):
        yield tensor[start : start + rows]
