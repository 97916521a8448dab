"""Whether a local checkpoint is where a pull would bring it, without its exclusive lock."""

from __future__ import annotations

import os

from hotswap.errors import UpdateRejected
from hotswap.stream.log import holding_in
from hotswap.stream.look import FirstLook
from hotswap.stream.place import real_name
from hotswap.stream.places import Places
from hotswap.stream.source import Source
from hotswap.stream.state import Reserved, State
from hotswap.stream.suspect import is_suspect

__all__ = ["is_applied"]


def is_applied(
    places: Places,
    target: int,
    *,
    base_digest: str | None = None,
    looks: bool = True,
    first: FirstLook | None = None,
) -> bool:
    """Whether ``places.local`` holds version ``target`` of the source, made from the base.

    Only true for as long as nobody pulls: hold it under ``reading`` to rely on it. A version
    that is gone from the source counts as the one that was applied. Without ``looks`` the source
    is not looked at; ``first`` is taken before it is. Raises: OSError, SourceNotReady.
    """
    paths = Reserved(places.local)
    held = holding_in(places.local)
    if held is None or paths.is_pending or is_suspect(paths, held):
        return False
    state = held.state
    made_of = state.number, state.base_checkpoint_dir
    if made_of != (target, os.path.realpath(places.base)):
        return False
    if base_digest not in (None, state.base_digest):
        return False
    if target and state.checkpoint_source_dir != real_name(places.source):
        return False
    if not target or not looks:
        return True
    if first is not None:
        first.take()
    return _is_published(places, state)


def _is_published(places: Places, state: State) -> bool:
    source = Source(places.source, names=state.tensors, allowed=places.source_allowed)
    try:
        return source.digest(state.number) == state.index_digest
    except UpdateRejected:
        return True
