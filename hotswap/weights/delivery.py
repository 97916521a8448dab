"""The books of one update: what was planned, what has come, what must be equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch

from hotswap.errors import UpdateRejected
from hotswap.seams import Plan
from hotswap.types import Bucket, Payload, TensorSpec
from hotswap.weights.casting import can_cast, why_not_plain
from hotswap.weights.pieces import spec_of
from hotswap.weights.plan import CheckedPlan, listing

__all__ = ["Delivery"]


class Delivery:
    """Checks buckets against a plan, and remembers what has arrived.

    ``ties`` are groups of names whose bytes must be equal; ``copies`` are all of
    them but the first of each, which nobody needs to write.
    """

    def __init__(self, plan: Plan) -> None:
        self.specs: Mapping[str, TensorSpec] = plan.specs
        checked = plan if isinstance(plan, CheckedPlan) else None
        self._sources: Mapping[str, TensorSpec] = checked.sources if checked else {}
        self.ties: tuple[tuple[str, ...], ...] = checked.ties if checked else ()
        self._skipped = frozenset(plan.unknown)
        self._arrived: set[str] = set()
        self._arrived_bytes = 0
        self.copies: frozenset[str] = frozenset(name for names in self.ties for name in names[1:])

    def __repr__(self) -> str:
        return f"<Delivery {len(self._arrived)} of {len(self.specs)} tensors>"

    @property
    def arrived(self) -> int:
        """Checkpoint tensors that have come so far; skipped ones do not count."""
        return len(self._arrived)

    @property
    def arrived_bytes(self) -> int:
        """Their bytes in the live dtype."""
        return self._arrived_bytes

    @property
    def awaits_ties(self) -> bool:
        """Whether some name of a tie has not come yet."""
        return any(name not in self._arrived for names in self.ties for name in names)

    def accept(self, bucket: Bucket) -> list[tuple[str, Payload]]:
        """Check ``bucket`` and enter it; returns it without what the plan skips.

        Raises: UpdateRejected when something is not as planned; nothing is entered then.
        """
        wanted = [(name, payload) for name, payload in bucket if name not in self._skipped]
        faults = [fault for name, payload in wanted if (fault := self._fault(name, payload))]
        names = [name for name, _ in wanted]
        twice = [name for name, n in Counter(names).items() if n > 1 or name in self._arrived]
        if twice:
            faults.append(listing("delivered twice", twice))
        if faults:
            raise UpdateRejected(
                f"the source delivered something else than it promised; {'; '.join(faults[:20])}; "
                "fix the source and send the update again"
            )
        self._arrived.update(names)
        # Added up as it comes: it is asked for after every bucket.
        self._arrived_bytes += sum(self.specs[name].size_bytes for name in names)
        return wanted

    def _fault(self, name: str, payload: Payload) -> str | None:
        planned = self.specs.get(name)
        if planned is None:
            return f"{name!r} was never announced"
        reason = why_not_plain(payload) if isinstance(payload, torch.Tensor) else None
        if reason is not None:
            return f"{name!r} is {reason}"
        seen, promised = spec_of(name, payload), self._sources.get(name)
        if promised is not None and seen != promised:
            return f"{seen} came, wanted {promised}"
        if seen.shape != planned.shape or not can_cast(seen.dtype, planned.dtype):
            return f"{seen} came, wanted {planned}"
        return None

    def check_complete(self) -> None:
        """Raises: UpdateRejected naming what has not come, or when nothing was planned."""
        lacking = [name for name in self.specs if name not in self._arrived]
        if lacking:
            raise UpdateRejected(
                f"the source ended early; {listing('tensors not delivered', lacking)}; "
                "send the update again"
            )
        if not self.specs:
            raise UpdateRejected("an update of 0 tensors changes nothing; send at least one")
