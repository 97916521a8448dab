"""Names that share live memory: what a source says of them must agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from hotswap.errors import UpdateRejected
from hotswap.types import Payload, TensorSpec
from hotswap.weights.memory import Memory
from hotswap.weights.pieces import equal_bytes, fill_jobs
from hotswap.weights.plan import CheckedPlan

__all__ = ["check_ties", "reject_unequal"]


def check_ties(plan: CheckedPlan, payloads: Mapping[str, Payload]) -> None:
    """Compare the ties of ``plan`` as they will be live; for loads that stage nothing.

    ``payloads`` holds every tied name. Blocks, on any thread, with two of the tensors
    in memory at a time. Raises: UpdateRejected when they differ; OSError.
    """
    for first, *others in plan.ties:
        with Memory(plan.specs[first].size_bytes) as kept:
            wanted = _materialise(kept, plan.specs[first], payloads[first])
            unequal = [
                name for name in others if not _is_equal(wanted, plan.specs[name], payloads[name])
            ]
            del wanted
        reject_unequal(first, unequal)


def reject_unequal(name: str, others: Sequence[str]) -> None:
    """Raises: UpdateRejected when there are ``others``, tied to ``name`` and unequal."""
    if others:
        raise UpdateRejected(
            f"{name} and {', '.join(others)} are one tensor in the live model (tied), and the "
            "source has different values for them; send one of them, or equal ones"
        )


def _is_equal(wanted: torch.Tensor, spec: TensorSpec, payload: Payload) -> bool:
    with Memory(spec.size_bytes) as memory:
        return equal_bytes(wanted, _materialise(memory, spec, payload))


def _materialise(memory: Memory, spec: TensorSpec, payload: Payload) -> torch.Tensor:
    out = memory.tensor(0, spec)
    for job in fill_jobs(out, payload):
        job()
    return out
