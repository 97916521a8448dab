"""Which version to pull next: the newest that can be, what somebody asked for, or none.

Rules:

* One that failed is left alone until it may be tried again, and an older one is pulled meanwhile.
* Nothing goes back by itself, unless what is held has gone from the source, as when another run
  begins there.
"""

from __future__ import annotations

from collections.abc import Collection

from hotswap.follow.mark import VersionMark
from hotswap.follow.seen import Seen

__all__ = ["next_target"]


def next_target(
    seen: Seen,
    held: VersionMark | None,
    *,
    wish: int | None = None,
    failed: Collection[int] = (),
    is_other_run: bool = False,
    is_untouched: bool = False,
) -> int | None:
    """The version to pull; None when there is nothing to do.

    ``wish`` goes before all others. ``is_other_run``: what is held is no part of what is
    published, so that it counts for nothing. ``is_untouched``: no pull has ever been there.
    """
    if wish is not None and wish not in failed:
        return None if held is not None and held.version == wish else wish
    if is_untouched and not seen.listed and 0 not in failed:
        # The first delta is then written into a copy of the base that is there already.
        return 0
    newer = [number for number in seen.whole if _is_newer(number, held, is_other_run)]
    return max((number for number in newer if number not in failed), default=None)


def _is_newer(number: int, held: VersionMark | None, is_other_run: bool) -> bool:
    return held is None or is_other_run or number > held.version
