"""A path that no route serves: which one may have been meant, and where all of them are."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

__all__ = ["no_such_path"]

_MAX_SHOWN = 80
_ALIKE = 0.7


def no_such_path(path: str, routes: Iterable[BaseRoute]) -> HTTPException:
    """The 404 for ``path``, which none of ``routes`` serves.

    It begins as Starlette's own does, which clients may look for.
    """
    paths = {_plain(getattr(route, "path", "")) for route in routes}
    close = get_close_matches(path[:_MAX_SHOWN], sorted(paths), n=1, cutoff=_ALIKE)
    meant = f"did you mean {close[0]}? " if close else ""
    seen = repr(path) if len(path) <= _MAX_SHOWN else f"{path[:_MAX_SHOWN]!r}..."
    told = f"{seen} is no route of this server; {meant}GET /openapi.json lists them"
    return HTTPException(404, detail=f"Not Found: {told}")


def _plain(path: str) -> str:
    return path.replace(":path}", "}")
