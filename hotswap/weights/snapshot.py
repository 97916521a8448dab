"""What the live weights were at one moment, to be compared with what they are later.

A snapshot is checksums and no copy: it takes no memory that a model would notice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hotswap.weights.plan import listing

__all__ = ["WeightSnapshot", "without"]


def without(checksums: Mapping[str, str], skipped: Sequence[str]) -> dict[str, str]:
    """``checksums`` but for names that have one of ``skipped`` in them."""
    return {
        name: value
        for name, value in checksums.items()
        if not any(part in name for part in skipped)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSnapshot:
    """A checksum of every live tensor, by live name."""

    checksums: Mapping[str, str]

    def __repr__(self) -> str:
        return f"<WeightSnapshot {len(self.checksums)} tensors>"

    def difference(self, now: Mapping[str, str], *, skipped: Sequence[str] = ()) -> str | None:
        """What is not as it was, in words that name the tensors; None when all is.

        Names that have one of ``skipped`` in them are not looked at.
        """
        before, now = without(self.checksums, skipped), without(now, skipped)
        found = {
            "changed": [name for name in before if name in now and now[name] != before[name]],
            "gone": [name for name in before if name not in now],
            "new": [name for name in now if name not in before],
        }
        told = [listing(label, names) for label, names in found.items() if names]
        return "; ".join(told) or None
