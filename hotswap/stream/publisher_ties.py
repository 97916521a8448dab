"""Names of one tensor: a model's state has a tied one under each, a checkpoint often under one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Hashable, Mapping

from hotswap.stream.publisher_tensors import NamedTensors

__all__ = ["without_ties"]


def without_ties(named: NamedTensors, known: Callable[[], Collection[str]] | None) -> NamedTensors:
    """``named`` without those names that the stream lacks and whose tensor it has under another.

    They are the same memory, so that readers miss nothing. ``known`` has the stream's names, and
    is asked only if there are tied ones; None for a stream that gets whatever is given.
    """
    if known is None or not isinstance(named, Mapping):
        return named
    names_of = dict[Hashable, list[str]]()
    for name, value in named.items():
        memory = _memory_of(value)
        if memory is not None:
            names_of.setdefault(memory, []).append(name)
    tied = [names for names in names_of.values() if len(names) > 1]
    if not tied:
        return named
    there = set(known())
    left_out = {
        name for names in tied if not there.isdisjoint(names) for name in names if name not in there
    }
    return {name: value for name, value in named.items() if name not in left_out}


def _memory_of(value: object) -> Hashable | None:
    """What tells a tensor of torch from all whose elements are others; None for anything else."""
    torch = sys.modules.get("torch")  # whoever has such a tensor has loaded it
    if torch is None or not isinstance(value, torch.Tensor) or not value.numel():
        return None
    if value.layout != torch.strided or value.device.type == "meta":
        return None
    try:
        begin = value.data_ptr()
    except (RuntimeError, NotImplementedError):  # one that stands for parts elsewhere has no memory
        return None
    bits = value.is_neg(), value.is_conj()
    at = str(value.device), begin, value.dtype, tuple(value.shape), value.stride(), *bits
    return at if begin else None
