"""What a follower was told: which source, where its copy lies, when it commits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

from hotswap.pulls.copy_name import copy_name
from hotswap.stream.place import Place, absolute_place
from hotswap.stream.places import lie_in_one_another
from hotswap.types import PauseMode

__all__ = ["CommitPace", "FollowOptions"]

_NEWEST = "newest"


class CommitPace(StrEnum):
    """Whether what was pulled ahead is committed when somebody says so, or by itself."""

    MANUAL = "manual"
    AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions:
    """``local`` is the directory that is pulled into, ``base`` the checkpoint of version 0.

    ``ready_version`` is the version that the server is ready with, None for the newest that
    there is at the start. ``pause_mode`` is how commits that nobody asked for meet requests in
    flight.
    """

    source: Place
    local: Path
    base: Path
    pace: CommitPace = CommitPace.MANUAL
    interval_s: float = 5.0
    ready_version: int | None = None
    pause_mode: PauseMode = PauseMode.RETRACT

    @classmethod
    def from_values(cls, values: Mapping[str, object]) -> Self | None:
        """From the values of a server's options by name; None when it is to follow nothing.

        Raises: ValueError for what cannot be meant; UpdateRejected for a URL that is none.
        """
        if values.get("follow") is None:
            return None
        if values.get("model") is None:
            raise ValueError("follow needs model, the checkpoint that the stream begins with")
        source = absolute_place(str(values["follow"]))
        base = Path(os.path.realpath(str(values["model"])))
        local = _local(values, source, base)
        if local == base:
            raise ValueError(
                f"follow-local {local} is the model too, wanted a directory of its own: pulls "
                "write into it, and begin from the model"
            )
        for what, other in (("the model", base), ("the source", source)):
            if isinstance(other, Path) and lie_in_one_another(local, Path(os.path.realpath(other))):
                raise ValueError(
                    f"follow-local {local} and {what} {other} lie in one another, and pulls "
                    "would write into it; wanted a directory apart"
                )
        return cls(
            source=source,
            local=local,
            base=base,
            pace=CommitPace(str(values["follow-commit"])),
            interval_s=float(str(values["follow-interval-s"])),
            ready_version=_version(str(values["follow-ready-version"])),
            pause_mode=PauseMode(str(values["follow-pause-mode"])),
        )


def _local(values: Mapping[str, object], source: Place, base: Path) -> Path:
    told = values.get("follow-local")
    if told is not None:
        return Path(os.path.realpath(str(told)))
    roots = values.get("local-root") or ()
    assert isinstance(roots, tuple)
    name = f"follow-{copy_name(source, str(base))}"
    return Path(os.path.realpath(roots[0] if roots else _cache())) / name


def _cache() -> Path:
    kept = os.environ.get("XDG_CACHE_HOME", "")
    # As its specification has it: one that is not absolute does not count.
    home = Path(kept) if os.path.isabs(kept) else Path.home() / ".cache"
    return home / "hotswap"


def _version(text: str) -> int | None:
    if text == _NEWEST:
        return None
    if text.isascii() and text.isdecimal() and len(text) <= 18:
        return int(text)
    raise ValueError(
        f"follow-ready-version is {text!r:.40}, wanted {_NEWEST}, or the number of a version"
    )
