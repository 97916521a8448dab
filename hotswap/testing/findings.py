"""What a failing test of a suite says: what was found, in what, and what to do about it.

Rule: a suite has no bare ``assert``. pytest explains those of test files alone, so that one
here would fail without a word.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch

from hotswap.types import TensorSpec
from hotswap.weights.pieces import spec_of

__all__ = ["check", "described", "listed", "on_one_line", "wrong_specs"]

_SHOWN = 6


def check(holds: bool, found: str, *, todo: str) -> None:
    """Raises: AssertionError ``found; todo`` unless it ``holds``."""
    if not holds:
        raise AssertionError(f"{found}; {todo}")


def listed(items: Iterable[object]) -> str:
    """The first few, and how many more there are."""
    texts = [str(item) for item in items]
    more = f", and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more


def described(
    names: Collection[str],
    got: Mapping[str, torch.Tensor],
    wanted: Mapping[str, torch.Tensor],
) -> str:
    """Each of ``names`` with the first byte in which what came differs from what was wanted."""
    return listed(_difference(name, got[name], wanted[name]) for name in names)


def wrong_specs(specs: Iterable[TensorSpec], wanted: Mapping[str, torch.Tensor]) -> list[str]:
    """What each spec says that is not so of the tensor of its name; others are passed over."""
    return [
        f"{spec}, wanted {real}"
        for spec in specs
        if spec.name in wanted and spec != (real := spec_of(spec.name, wanted[spec.name]))
    ]


def on_one_line(error: BaseException) -> str:
    """Class and message."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _difference(name: str, one: torch.Tensor, other: torch.Tensor) -> str:
    spec = spec_of(name, one)
    ours, theirs = (
        tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)
    )
    at = int((ours != theirs).to(torch.uint8).argmax())
    return (
        f"{spec} at byte {at} of {len(theirs)}: {int(ours[at]):#04x}, wanted {int(theirs[at]):#04x}"
    )
