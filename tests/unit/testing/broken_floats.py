"""Engines that compute with floats which they should only copy."""

from __future__ import annotations

import torch

from hotswap.seams import Plan
from hotswap.testing.module_engine import ModuleEngine
from hotswap.types import Bucket, Payload
from tests.unit.testing.planted_engines import broken

__all__: list[str] = []


class ComputesFloats(ModuleEngine):
    """Computes with every float on its way."""

    async def write(self, plan: Plan, bucket: Bucket) -> None:
        await super().write(plan, [(name, self.computed(payload)) for name, payload in bucket])

    def computed(self, payload: Payload) -> Payload:
        if isinstance(payload, torch.Tensor) and payload.is_floating_point():
            return self.other(payload)
        return payload

    def other(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


@broken(
    "zeros lose their sign",
    "test_odd_floats_are_live_bit_by_bit",
    says=r"with signed zeros this is live: .* 0x00, wanted 0x80",
)
class UnsignedZeros(ComputesFloats):
    def other(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.where(tensor == 0, torch.zeros_like(tensor), tensor)


@broken(
    "all NaNs become one",
    "test_odd_floats_are_live_bit_by_bit",
    says=r"with NaNs this is live: .* wanted 0x",
)
class OneNan(ComputesFloats):
    def other(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.where(tensor.isnan(), torch.full_like(tensor, torch.nan), tensor)


@broken(
    "what is nearly zero becomes zero",
    "test_odd_floats_are_live_bit_by_bit",
    says=r"with subnormal numbers this is live: .* 0x00, wanted 0x01",
)
class FlushesToZero(ComputesFloats):
    def other(self, tensor: torch.Tensor) -> torch.Tensor:
        tiny = torch.finfo(tensor.dtype).smallest_normal
        is_subnormal = (tensor != 0) & (tensor.abs() < tiny)
        return torch.where(is_subnormal, torch.zeros_like(tensor), tensor)
