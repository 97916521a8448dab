"""A local checkpoint that cannot be opened is damaged, which no waiting mends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hotswap.errors import UpdateRejected
from hotswap.stream.errors import StreamError, without_advice
from hotswap.stream.log import Holding, holding_in
from hotswap.stream.own_files import changed_sizes
from hotswap.stream.small_files import small_faults
from hotswap.stream.state import Reserved
from hotswap.stream.stored import StoredTensors
from hotswap.stream.suspect import damage_found
from hotswap.weights.roots import Allowed

__all__ = ["told_as_damage"]


@contextmanager
def told_as_damage(
    directory: str | os.PathLike[str], *, allowed: Allowed | None, pulls_first: bool = False
) -> Iterator[None]:
    """Raise LocalDamaged where the body rejects ``directory`` and its files are not what the last
    pull left; the next pull looks for it. ``pulls_first`` as of ``damage_found``.

    Only while the directory's lock is held. What no pull keeps is rejected as it was.
    """
    try:
        yield
    except StreamError:
        raise
    except UpdateRejected as error:
        what = _what_is_wrong(directory, allowed)
        if what is None:
            raise
        raise damage_found(Path(directory), what, pulls_first=pulls_first) from error


def _what_is_wrong(directory: str | os.PathLike[str], allowed: Allowed | None) -> str | None:
    try:
        path = Path(os.path.realpath(directory))
        held = holding_in(path) if allowed is None or allowed(path) else None
        return None if held is None else _fault(path, held)
    except (OSError, ValueError):
        return None


def _fault(path: Path, held: Holding) -> str | None:
    for fault in small_faults(path, held.plain):
        return fault
    for fault in changed_sizes(Reserved(path)):
        return fault
    try:
        StoredTensors.at(path, with_log=True).close()
    except UpdateRejected as error:
        return f"its files are not what the last pull left ({without_advice(error)})"
    return None
