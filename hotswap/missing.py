"""What to do about a strategy or an engine that no plug-in here brings.

Rule: nobody is told to install a package of which nothing is known but that its name would fit: a
misspelt name may be somebody's package, and installing one runs its code.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["ENGINES", "STRATEGIES", "remedy"]

STRATEGIES = ("delta-pull", "disk")
"""Load strategies that dists of this project bring, ``hotswap-`` before the name."""

ENGINES = ("transformers",)
"""The same of engines."""


def remedy(name: str, *, installed: Iterable[str], own: Iterable[str]) -> str:
    """``name``, which could be one, is not among ``installed``; ``own`` are known to exist."""
    installed, own = set(installed), set(own)
    if name in own:
        return _install(name)
    close = get_close_matches(name, sorted(installed | own), n=1)
    if not close:
        return (
            f"a plug-in that brings it would be the dist hotswap-{name}: if you know whose that "
            f"is, {_install(name)}"
        )
    meant = f"did you mean {close[0]!r}?"
    return meant if close[0] in installed else f"{meant} That comes with {_install(close[0])}"


def _install(name: str) -> str:
    return f"pip install hotswap-{name}, then restart the server"
