"""The directories that a command is given, told apart before one is taken for another."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["refuse_no_source"]

_OF_CHECKPOINTS = (".safetensors", ".safetensors.index.json")


def refuse_no_source(given: str) -> None:
    """Return for what may be a source of published versions, be it empty or not there yet.

    Raises: UpdateRejected for a file, a checkpoint and a local checkpoint.
    """
    from hotswap.errors import UpdateRejected
    from hotswap.object_url import is_url
    from hotswap.stream.layout import published_versions
    from hotswap.stream.survey_local import is_local

    place = Path(given)
    if is_url(given) or not place.exists():
        return
    wanted = "wanted a directory of published versions"
    if not place.is_dir():
        raise UpdateRejected(f"{given} is a file, {wanted}")
    if published_versions(place):
        return
    if is_local(place):
        raise UpdateRejected(
            f"{given} is a local checkpoint, which versions are pulled into, {wanted}: hotswap "
            "inspect names the source that it was pulled from"
        )
    if any(name.endswith(_OF_CHECKPOINTS) for name in os.listdir(place)):
        raise UpdateRejected(
            f"{given} is a checkpoint and has no published version, {wanted}: hotswap check says "
            "whether it is loadable, hotswap publish makes a version of it"
        )
