"""Named tensors as the bytes of one safetensors file, made as they are sent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import torch

from hotswap.types import Payload, TensorSpec
from hotswap.weights.pieces import spec_of
from hotswap.weights.safetensors_header import DTYPES, LENGTH_BYTES

__all__ = ["SafetensorsBody", "dtype_name"]

_PIECE_BYTES = 2**20
_ALIGNMENT = 8
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dtype_name(spec: TensorSpec) -> str:
    """As safetensors spells it. Raises: ValueError for a dtype that it does not have."""
    name = _NAMES.get(spec.dtype)
    if name is None:
        raise ValueError(f"{spec}: safetensors has no such dtype; cast it before it is pushed")
    return name


class SafetensorsBody:
    """``len`` bytes; every iteration makes them again. Holds one tensor's copy at most.

    Tensors of a device, and those with gaps, are copied when their turn comes; they must not
    change before the reply is there. Raises: ValueError, see ``dtype_name``, and for a name
    that comes twice.
    """

    def __init__(self, tensors: Iterable[tuple[str, Payload]]) -> None:
        self._items = list(tensors)
        header: dict[str, object] = {}
        at = 0
        for name, payload in self._items:
            spec = spec_of(name, payload)
            if name in header:
                raise ValueError(f"tensor {name!r} is there twice, wanted once")
            end = at + spec.size_bytes
            header[name] = {
                "dtype": dtype_name(spec),
                "shape": list(spec.shape),
                "data_offsets": [at, end],
            }
            at = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        self._head = len(text).to_bytes(LENGTH_BYTES, "little") + text
        self._length = len(self._head) + at

    def __repr__(self) -> str:
        return f"<SafetensorsBody {len(self._items)} tensors, {self._length} bytes>"

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[bytes | memoryview]:
        yield self._head
        for _, payload in self._items:
            whole = _bytes(payload)
            for start in range(0, len(whole), _PIECE_BYTES):
                yield whole[start : start + _PIECE_BYTES]


def _bytes(payload: Payload) -> memoryview:
    if isinstance(payload, torch.Tensor):
        plain = payload.detach().cpu().contiguous()
    else:
        plain = torch.empty(payload.spec.shape, dtype=payload.spec.dtype)
        payload.read_into(plain)
    # view(-1) of a lone element may keep an odd stride.
    flat = plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)
    view: memoryview = flat.numpy().data
    return view
