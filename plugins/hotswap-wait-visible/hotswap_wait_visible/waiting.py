"""How long, how often and for what to wait."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import anyio
import anyio.to_thread

from hotswap.errors import UpdateRejected
from hotswap.hookspecs import TIMEOUTS_S
from hotswap.stream import SourceNotReady
from hotswap.uninterrupted import own_threads
from hotswap_wait_visible.looking import has_newer, what_is_missing

__all__ = ["EVERY_S", "LIMIT_S", "WITHIN_S", "Waiting", "check_seconds"]

WITHIN_S = 30.0
EVERY_S = 0.2

LIMIT_S = TIMEOUTS_S["hotswap_pre_read"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """``roots`` are absolute; a source elsewhere is none of this plug-in's business."""

    roots: tuple[Path, ...]
    within_s: float = WITHIN_S
    every_s: float = EVERY_S

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> Self:
        """Make it from the plug-in's options. Raises: UpdateRejected naming one of no use."""
        roots = options.get("wait-visible-root") or ()
        if not isinstance(roots, Iterable):
            raise _useless("wait-visible-root", roots, "directories")
        return cls(
            roots=tuple(Path(os.path.abspath(str(root))) for root in roots),
            # Past its own limit hotswap ends the hook, which could then not say what is missing.
            within_s=_seconds(options, "wait-visible-s", WITHIN_S, below=LIMIT_S),
            every_s=_seconds(options, "wait-visible-every-s", EVERY_S, below=math.inf),
        )

    def root_of(self, source: str) -> Path | None:
        """The root that ``source`` lies in; None for what is no path, or lies elsewhere.

        Only names are compared: asking the mount would make it remember that nothing is there.
        """
        if not source or "\0" in source or not os.path.isabs(source):
            return None
        path = _path(source)
        return next((root for root in self.roots if path.is_relative_to(root)), None)

    async def until_whole(self, source: str, version: str | None) -> None:
        """Look again and again, each time from the root's own list of names on.

        Raises: SourceNotReady when something is still missing after ``within_s``, unless the
        source has versions that are newer than one that is not there.
        """
        root = self.root_of(source)
        if root is None:
            return
        missing: str | None = "no look has ended; the mount does not answer"
        look = partial(what_is_missing, root, _path(source), version)
        with anyio.move_on_after(self.within_s):
            while True:
                # A look at a mount that hangs is left behind: the time-out holds all the same.
                missing = await anyio.to_thread.run_sync(
                    look, abandon_on_cancel=True, limiter=own_threads()
                )
                if missing is None:
                    return
                await anyio.sleep(self.every_s)
        newer = partial(has_newer, _path(source), version)
        with anyio.move_on_after(self.within_s):
            if await anyio.to_thread.run_sync(newer, abandon_on_cancel=True, limiter=own_threads()):
                return  # it is gone and not late, which the pull says, and no wait would mend
        raise SourceNotReady(
            f"hotswap-wait-visible: {source} is not visible after {self.within_s:g} s: {missing}; "
            "see whether it was published, or wait longer with --wait-visible-s"
        )


def _path(source: str) -> Path:
    return Path(os.path.abspath(source))


def _seconds(options: Mapping[str, object], name: str, default: float, *, below: float) -> float:
    value = options.get(name, default)
    try:
        return check_seconds(name, value, below=below)
    except ValueError as error:
        raise UpdateRejected(
            f"hotswap-wait-visible: {error}; restart the server with another value"
        ) from None


def check_seconds(name: str, value: object, *, below: float) -> float:
    """``value`` of the option ``name``, which has to be seconds. Raises: ValueError."""
    if not isinstance(value, int | float) or not 0 < value < below:
        most = "" if below == math.inf else f" and less than {below:g}"
        raise ValueError(f"{name} is {value!r}, wanted seconds, more than 0{most}")
    return float(value)


def _useless(name: str, value: object, wanted: str) -> UpdateRejected:
    return UpdateRejected(
        f"hotswap-wait-visible: {name} is {value!r}, wanted {wanted}; restart the server with "
        "another value"
    )
