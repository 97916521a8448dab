"""Which directories a pull may read from and write to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hotswap.stream.errors import OutsideRoots, StreamError
from hotswap.stream.layout import MAX_VERSION
from hotswap.stream.objects import Objects
from hotswap.stream.place import Place
from hotswap.stream.state import Reserved
from hotswap.weights.roots import Allowed, Roots

__all__ = ["Places", "lie_in_one_another"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The directories of one pull, and who says that they may be used.

    ``base`` is the checkpoint that the server was started with. ``*_allowed`` decide on
    real paths, and ``Roots`` on URLs; None allows everything.
    """

    local: Path
    source: Place
    base: Path
    local_allowed: Allowed | None = None
    source_allowed: Allowed | None = None

    def check(self, target: int) -> None:
        """Raises: OutsideRoots when a directory may not be used, or two of them overlap."""
        self.check_local(target)
        self.check_source(target)

    def check_local(self, target: int) -> None:
        """``check`` but for the source; past it the local directory may be looked at."""
        if type(target) is not int or target < 0:
            raise StreamError(f"target_version is {target!r:.40}, wanted an integer from 0 on")
        if target > MAX_VERSION:
            # Python spells no integer of more than 4300 digits.
            raise StreamError(
                f"target_version has {target.bit_length()} bits, wanted at most {MAX_VERSION}, "
                "which is what an index can spell"
            )
        local = _real(self.local)
        self._check_allowed("local_checkpoint_dir", self.local, self.local_allowed)
        if Reserved(local).home.name in local.parts:
            raise OutsideRoots(
                f"local_checkpoint_dir {str(self.local)!r:.200} lies in what another local "
                "checkpoint keeps for its pulls; choose a directory outside of it"
            )
        self._check_apart(local, "the base checkpoint", self.base)

    def check_source(self, target: int) -> None:
        """``check`` of the source; that of version 0 is the base, and no other is looked at."""
        if target:
            if isinstance(self.source, Objects):
                self._check_url(self.source)
                return
            self._check_allowed("source_dir", self.source, self.source_allowed)
            self._check_apart(_real(self.local), "source_dir", self.source)

    def _check_url(self, source: Objects) -> None:
        allowed = self.source_allowed
        if allowed is None or (isinstance(allowed, Roots) and allowed.allow_url(source.url)):
            return
        raise OutsideRoots(
            f"source_dir {source} is not below a URL of the roots ({allowed}); choose one that is, "
            f"or start the server with --source-root {source}"
        )

    def _check_allowed(self, what: str, path: Path, allowed: Allowed | None) -> None:
        if allowed is not None and not allowed(_real(path)):
            raise OutsideRoots(
                f"{what} {str(path)!r:.200} resolves to {str(_real(path))!r:.200}, outside the "
                f"roots ({allowed}); choose one inside, or start the server with another root"
            )

    def _check_apart(self, local: Path, what: str, path: Path) -> None:
        if lie_in_one_another(local, _real(path)):
            raise OutsideRoots(
                f"local_checkpoint_dir {str(self.local)!r:.200} and {what} {str(path)!r:.200} lie "
                "in one another, and a pull would write into it; choose a directory apart"
            )


def lie_in_one_another(one: Path, other: Path) -> bool:
    """Whether one of two real paths is within the other, or is it."""
    return one.is_relative_to(other) or other.is_relative_to(one)


def _real(path: Path) -> Path:
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as error:
        raise OutsideRoots(f"{str(path)!r:.200} is no path of this server ({error})") from error
