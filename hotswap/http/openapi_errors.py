"""Which error statuses a route may answer with, by what it is."""

from __future__ import annotations

from hotswap.http.routes import Kind, KindedRoute, is_public

__all__ = ["error_statuses"]

_BY_KIND: dict[Kind, frozenset[int]] = {
    Kind.UPDATE: frozenset({400, 403, 409, 500, 503}),
    Kind.CONTROL: frozenset({400, 403, 409, 500, 503}),
    Kind.LOOKUP: frozenset({400, 403, 404, 409, 500, 503}),
    Kind.GENERATE: frozenset({400, 404, 409, 429, 500, 503}),
    Kind.OPEN: frozenset({500}),
}


def error_statuses(route: KindedRoute, *, takes_body: bool) -> list[int]:
    """The statuses, sorted. What they mean is in ``docs/reference/errors.md``."""
    statuses = {*_BY_KIND[route.kind], *route.errors}
    if not is_public(route):
        statuses.add(401)
    if takes_body or (route.body is not None and route.body.__struct_fields__):
        statuses |= {400, 413}
    if route.param_convertors:
        statuses.add(404)
    if route.level is not None:
        statuses.add(403)
    return sorted(statuses)
