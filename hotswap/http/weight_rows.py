"""Rows of one weight as JSON: bounded, and in pieces that no other thread waits long for."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from hotswap.http.errors import RequestInvalid
from hotswap.http.replies import encode
from hotswap.seams import Inspector

__all__ = ["MAX_VALUES", "shown_rows", "tensor_pieces"]

MAX_VALUES = 4 * 2**20
"""Values of one reply at most; as JSON each has up to 20 characters."""

# Making Python floats and JSON of them keeps the GIL: a few milliseconds a piece.
_PIECE_VALUES = 16 * 1024


async def shown_rows(inspector: Inspector, name: str, rows: int) -> torch.Tensor:
    """The first ``rows`` of a weight, or fewer when it has fewer.

    Raises: KeyError for an unknown name, RequestInvalid for more than ``MAX_VALUES``.
    """
    row_values = max(1, (await inspector.read_weight(name, 1)).numel())
    fitting = MAX_VALUES // row_values
    # One more than fits is enough to know; an engine copies what it is asked for.
    tensor = await inspector.read_weight(name, min(rows, fitting + 1))
    if tensor.numel() > MAX_VALUES:
        raise RequestInvalid(
            f"truncate_size {rows} asks for more than {MAX_VALUES} values of {name!r}, whose rows "
            f"have {row_values}; send a truncate_size of at most {fitting}"
        )
    return tensor


def tensor_pieces(tensor: torch.Tensor) -> Iterator[bytes]:
    """Nested lists of a CPU tensor as JSON; NaN as null."""
    if not tensor.ndim or tensor.numel() <= _PIECE_VALUES:
        yield encode(tensor.tolist())
        return
    row_values = tensor[0].numel()
    step = max(1, _PIECE_VALUES // row_values)
    for start in range(0, len(tensor), step):
        yield b"," if start else b"["
        if row_values > _PIECE_VALUES:
            yield from tensor_pieces(tensor[start])
        else:
            yield encode(tensor[start : start + step].tolist())[1:-1]
    yield b"]"
