"""Modules that ``torch.compile`` wraps: their names, and code that keeps copies of weights.

Compiled code reads parameters where they are, so that an update in place is seen by the
next forward pass. Inductor's *freezing* is the exception: it folds weights into the code
as constants, and such a module would go on computing with the old ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from torch import nn

from hotswap.errors import UpdateRejected

__all__ = ["plain_name", "refuse_frozen"]

_WRAPPED = "_orig_mod"


def plain_name(name: str) -> str:
    """The name that a weight has in the module as it was before it was compiled."""
    if _WRAPPED not in name:
        return name
    return ".".join(part for part in name.split(".") if part != _WRAPPED)


def refuse_frozen(module: nn.Module) -> None:
    """Raises: UpdateRejected naming every compiled module with its weights folded in."""
    frozen = sorted(set(_frozen(module)))
    if frozen:
        raise UpdateRejected(
            f"{', '.join(frozen)}: compiled with freezing, which folds the weights into the code, "
            "so that an update would change nothing there; compile without "
            "torch._inductor.config.freezing (or options={'freezing': True})"
        )


def _frozen(module: nn.Module) -> Iterator[str]:
    # Code is made at the first call, by what the switch says then; not loaded, it is off.
    inductor = sys.modules.get("torch._inductor.config")
    is_on = bool(getattr(inductor, "freezing", False))
    for name, submodule in module.named_modules():
        # What torch.compile returned, and what nn.Module.compile keeps beside the module.
        for compiled in (submodule, getattr(submodule, "_compiled_call_impl", None)):
            ask = getattr(compiled, "get_compiler_config", None)
            config = ask() if callable(ask) else None
            if isinstance(config, Mapping) and (is_on or config.get("freezing")):
                yield plain_name(name) or "the whole module"
