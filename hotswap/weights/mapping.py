"""Names of fused parameters: which rows of ``qkv_proj`` the name ``q_proj`` means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

__all__ = ["CheckpointNaming", "FusedPart", "FusedRule", "Place", "SplitName", "split_names"]


@dataclass(frozen=True, slots=True)
class FusedPart:
    """One checkpoint module inside a fused one: its name, and its rows (dimension 0)."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedRule:
    """A live module ``fused`` whose rows are those of ``parts``, in order.

    ``fused`` is one component of a parameter's path: the module that owns it
    (``layers.0.qkv_proj.weight``, and ``.bias`` alike) or the parameter itself
    (``experts.gate_up_proj``). Two rules may share a name when their row counts
    differ. Raises: ValueError for a rule that names nothing or holds no rows.
    """

    fused: str
    parts: tuple[FusedPart, ...]

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        if not self.fused or not all(names) or any("." in name for name in [self.fused, *names]):
            raise ValueError(
                f"{self} wants path components: names that are not empty, without dots"
            )
        if not names or len(set(names)) < len(names) or self.fused in names:
            raise ValueError(f"{self} wants at least one part, all of different names")
        if any(part.rows < 1 for part in self.parts):
            raise ValueError(f"{self} wants at least one row in every part")

    @property
    def rows(self) -> int:
        """Rows of the fused parameter."""
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True, slots=True)
class SplitName:
    """A checkpoint name, and the rows ``start:stop`` of the fused parameter it means."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Rows ``start:stop`` of the live parameter ``live``; ``stop`` None means all the rest.

    Rows are counted with the first ``depth`` dimensions taken as one: at depth 2 the
    matrices of ``[experts x rows x columns]`` lie below each other.
    """

    live: str
    start: int = 0
    stop: int | None = None
    depth: int = 1


class CheckpointNaming(Protocol):
    """Names that another library gives the weights in a checkpoint. Any thread.

    For models whose names no :class:`FusedRule` tells: parts that are renamed, or experts
    that are stacked into one parameter.
    """

    @property
    def usual(self) -> Mapping[str, Place]:
        """The names that a full checkpoint has where they are not the live ones."""
        ...

    def find(self, names: Iterable[str]) -> Mapping[str, Place]:
        """What the names of a source mean; a name that is left out means what it says.

        Raises: UpdateRejected naming those that nothing in place can be made of.
        """
        ...

    def ignores(self, name: str) -> bool:
        """Whether a name that no live tensor has may be left out of a full source."""
        ...


def split_names(name: str, rows: int | None, rules: Sequence[FusedRule]) -> tuple[SplitName, ...]:
    """Checkpoint names inside live parameter ``name``; empty when no rule matches.

    ``rows`` is the parameter's dimension 0, None for a scalar. Raises: ValueError
    when rules match the name and none adds up to its rows.
    """
    path = name.split(".")
    owners = range(max(0, len(path) - 2), len(path))
    matches = [(at, rule) for at in owners for rule in rules if path[at] == rule.fused]
    for at, rule in matches:
        if rule.rows == rows:
            return _split(path, at, rule)
    if matches:
        raise ValueError(
            f"{name} has {rows if rows is not None else 'no'} rows, and the fused rules for it add "
            f"up to {sorted({rule.rows for _, rule in matches})}; correct the rows of the parts"
        )
    return ()


def _split(path: list[str], at: int, rule: FusedRule) -> tuple[SplitName, ...]:
    stops = accumulate(part.rows for part in rule.parts)
    return tuple(
        SplitName(".".join([*path[:at], part.name, *path[at + 1 :]]), stop - part.rows, stop)
        for part, stop in zip(rule.parts, stops, strict=True)
    )
