"""How much a payload may cost to read.

Rule: everything is charged before it is kept, and what lies nested in a payload is
charged to the same budget, so that a small payload which names one large part many
times costs no more than an honest one.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotswap.wire.refused import PayloadRefused

__all__ = ["DEFAULT_LIMITS", "Budget", "Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``payload_bytes`` of one payload, before any base64; ``held_bytes`` of memory for what
    it says, as an upper estimate; ``opcodes`` of it and of all that is nested in it;
    ``stack`` and ``memo`` entries at a time; ``depth`` of containers within containers."""

    payload_bytes: int = 32 * 2**20
    held_bytes: int = 32 * 2**20
    opcodes: int = 1_000_000
    stack: int = 100_000
    memo: int = 200_000
    depth: int = 32


DEFAULT_LIMITS = Limits()
"""Room for buckets of about ten thousand tensors."""


class Budget:
    """What is left of some limits, for one request. One thread."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self._opcodes = 0
        self._held_bytes = 0

    def __repr__(self) -> str:
        return f"<Budget {self._opcodes} opcodes, {self._held_bytes} bytes used>"

    def begin(self, size_bytes: int) -> None:
        """A payload of ``size_bytes`` is to be read. Raises: PayloadRefused."""
        if size_bytes > self.limits.payload_bytes:
            raise PayloadRefused(
                f"the payload has {size_bytes} bytes, wanted at most "
                f"{self.limits.payload_bytes}; send fewer tensors at once"
            )

    def step(self) -> None:
        """One more opcode. Raises: PayloadRefused."""
        self._opcodes += 1
        if self._opcodes > self.limits.opcodes:
            raise PayloadRefused(
                f"the payload has more than {self.limits.opcodes} opcodes; "
                "send fewer tensors at once"
            )

    def hold(self, size_bytes: int) -> None:
        """Something of at most ``size_bytes`` is to be kept. Raises: PayloadRefused."""
        self._held_bytes += size_bytes
        if self._held_bytes > self.limits.held_bytes:
            raise PayloadRefused(
                f"what the payload says takes more than {self.limits.held_bytes} bytes of memory; "
                "send fewer tensors at once"
            )
