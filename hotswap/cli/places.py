"""The directories that a command is given, told apart before one is taken for another."""

from __future__ import annotations

from pathlib import Path

__all__ = ["refuse_no_source"]


def refuse_no_source(given: str) -> None:
    """Return for what may be a source of published versions, be it empty or not there yet.

    Raises: SourceUnusable for a file, a checkpoint, a local checkpoint and a single version.
    """
    from hotswap.object_url import is_url
    from hotswap.stream.no_source import no_source

    refusal = None if is_url(given) else no_source(Path(given))
    if refusal is not None:
        raise refusal
