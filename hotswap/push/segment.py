"""A segment of shared memory that a trainer fills, and whose name it sends."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

import torch

from hotswap.closing import Closing
from hotswap.push.body import dtype_name
from hotswap.push.described import NONCE_BYTES, DescribedTensor, Description
from hotswap.types import Payload, TensorSpec
from hotswap.weights.pieces import spec_of
from hotswap.wire.sending import check_room, new_segment

__all__ = ["SharedTensors"]

_ALIGNMENT = 64


class SharedTensors(Closing):
    """Room for tensors in memory that the processes of this machine share.

    ``tensors`` are views of it, by name: fill them, and push this as often as you like. The
    memory goes with the last of the tensors and this object. Raises: OSError when
    ``/dev/shm`` has no room, ValueError for a name that comes twice.
    """

    def __init__(self, specs: Iterable[TensorSpec]) -> None:
        self._specs: dict[str, tuple[TensorSpec, int]] = {}
        at = _aligned(NONCE_BYTES)
        for spec in specs:
            if spec.name in self._specs:
                raise ValueError(f"tensor {spec.name!r} is there twice, wanted once")
            dtype_name(spec)
            self._specs[spec.name] = (spec, at)
            at += _aligned(spec.size_bytes)
        check_room(at)
        self._size_bytes = at
        storage = new_segment(at)
        _, name, _ = storage._share_filename_cpu_()
        self._segment = bytes(name).decode("ascii")
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        flat = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (at,), (1,))
        flat[:NONCE_BYTES] = torch.tensor(list(self._nonce), dtype=torch.uint8)
        self.tensors: dict[str, torch.Tensor] = {
            name: flat[at : at + spec.size_bytes].view(spec.dtype).view(spec.shape)
            for name, (spec, at) in self._specs.items()
        }

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, Payload]]) -> SharedTensors:
        """A copy of ``tensors``, which may lie anywhere. Raises: as the constructor."""
        items = list(tensors)
        shared = cls(spec_of(name, payload) for name, payload in items)
        for name, payload in items:
            if isinstance(payload, torch.Tensor):
                shared.tensors[name].copy_(payload.detach())
            else:
                payload.read_into(shared.tensors[name])
        return shared

    def __repr__(self) -> str:
        return f"<SharedTensors {len(self._specs)} tensors, {self._size_bytes} bytes>"

    def description(self) -> Description:
        """What a push says of it. Send it, and await the reply, before :meth:`close`."""
        return Description(
            segment=self._segment,
            size_bytes=self._size_bytes,
            nonce=self._nonce.hex(),
            tensors=[
                DescribedTensor(
                    name=name, dtype=dtype_name(spec), shape=list(spec.shape), offset=at
                )
                for name, (spec, at) in self._specs.items()
            ],
        )

    def close(self) -> None:
        """Let go of the memory. Idempotent; it goes once nobody else holds its tensors."""
        self.tensors.clear()


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
