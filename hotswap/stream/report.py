"""What a pull did and cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from hotswap.counted import counted

__all__ = ["Keep", "PullMode", "PullReport"]


class Keep(StrEnum):
    """What pulls make of a local checkpoint.

    ``materialize``: its files are the version, for every reader. ``log``: its files stay what
    they were, and versions are kept beside them for readers that apply them. ``two-copies``: as
    ``materialize``, and faster for twice the room: a version is written into the files of the
    one before last, which then takes the place of the last one's.
    """

    FILES = "materialize"
    COPIES = "two-copies"
    LOG = "log"


class PullMode(StrEnum):
    """How a pull reached its target.

    ``noop``: it was there. ``delta``: one version; ``fold``: several, one write a
    tensor. ``seed``: a new copy from the base or a full version; ``reseed``: the same over an
    old copy. ``recovered``: an earlier pull that was cut short had begun it. ``log``: the files
    stayed as they were, and the versions are beside them.
    """

    NOOP = "noop"
    DELTA = "delta"
    FOLD = "fold"
    SEED = "seed"
    RESEED = "reseed"
    RECOVERED = "recovered"
    LOG = "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class PullReport:
    """``versions`` were applied, in order, on ``start``. ``aggregate``: the first of them
    from the base on in one. ``reason`` says why a copy was seeded again. ``seconds`` by phase.
    """

    mode: PullMode
    version: int
    start: int
    versions: tuple[int, ...] = ()
    aggregate: bool = False
    reason: str | None = None
    read_bytes: int = 0
    written_bytes: int = 0
    seconds: Mapping[str, float]

    def __str__(self) -> str:
        spent = "".join(f", {phase} {s:.2f} s" for phase, s in self.seconds.items())
        return (
            f"version {self.version} ({self.mode}, {counted(len(self.versions), 'version')} on "
            f"{self.start}), read {self.read_bytes / 1e6:.1f} MB, "
            f"wrote {self.written_bytes / 1e6:.1f} MB{spent}"
        )
