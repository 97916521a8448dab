"""Which entry points are installed, however broken the list of one dist is.

Rule: a list that cannot be read costs that dist its plug-ins, and nobody else anything. (torch
reads all lists for backends when it is imported, and raises for a line without an equals sign
itself, unless ``TORCH_DEVICE_BACKEND_AUTOLOAD=0``.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, distributions

from hotswap.foreign import said
from hotswap.plugin_loading import said_by

__all__ = ["UnreadableDist", "installed_entry_points"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableDist:
    """A dist whose list of entry points names the group and cannot be read, and why."""

    name: str
    version: str
    where: str
    reason: str


def installed_entry_points(
    group: str, *, dists: Iterable[Distribution] | None = None
) -> tuple[list[EntryPoint], list[UnreadableDist]]:
    """Those of ``group``, of every dist once, and the dists that cannot say theirs.

    Of two dists with one name the first of the path counts, as for imports. ``dists``
    replaces those of the path.
    """
    found: list[EntryPoint] = []
    unreadable: list[UnreadableDist] = []
    seen: set[str] = set()
    for dist in distributions() if dists is None else dists:
        text = _text_of(dist)
        if f"[{group}]" not in text:
            continue
        name = said_by(dist, "Name") or "?"
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in seen and key != "?":
            continue
        seen.add(key)
        try:
            found += dist.entry_points.select(group=group)
        except Exception as error:
            version = said_by(dist, "Version") or "?"
            reason = (
                f"its entry_points.txt cannot be read ({said(error)}), wanted lines as "
                "name = module:object; put it right in the dist's pyproject.toml"
            )
            unreadable.append(
                UnreadableDist(name=name, version=version, where="entry_points.txt", reason=reason)
            )
    return found, unreadable


def _text_of(dist: Distribution) -> str:
    try:
        return dist.read_text("entry_points.txt") or ""
    except (OSError, UnicodeDecodeError):
        # Of a dist that is being removed or was written by something else than an installer.
        return ""
