"""hotswap plug-in: a source on a mount that lags is read once it is whole there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from hotswap.options import Option
from hotswap_wait_visible.waiting import EVERY_S, LIMIT_S, WITHIN_S, Waiting, check_seconds

__all__ = ["Waiting", "hotswap_options", "hotswap_pre_read"]

hotswap_api_version = 1


def hotswap_options() -> Sequence[Option]:
    """Bring ``--wait-visible-root``, ``--wait-visible-s`` and ``--wait-visible-every-s``."""
    return (
        Option(
            name="wait-visible-root",
            help="directory whose contents become visible late; sources below it are waited for; "
            "repeatable; nothing is waited for when not given",
            repeatable=True,
        ),
        Option(
            name="wait-visible-s",
            help=f"longest wait for a source to be whole, in seconds; {WITHIN_S:g} by default",
            type=float,
            default=WITHIN_S,
            check=partial(check_seconds, "wait-visible-s", below=LIMIT_S),
        ),
        Option(
            name="wait-visible-every-s",
            help=f"seconds between two looks; {EVERY_S:g} by default",
            type=float,
            default=EVERY_S,
            check=partial(check_seconds, "wait-visible-every-s", below=math.inf),
        ),
    )


async def hotswap_pre_read(source: str, version: str | None, options: Mapping[str, object]) -> None:
    """Wait until ``version`` is whole in ``source``, or ``source`` itself is.

    Raises: UpdateRejected when it is not in time, or an option has no use.
    """
    await Waiting.from_options(options).until_whole(source, version)
