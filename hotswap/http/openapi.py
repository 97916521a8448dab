"""The OpenAPI 3.1 document: what the route table and the structs of the bodies say.

Nothing is written twice: a route brings its summary (the first line of its endpoint's
docstring), its arguments (``body``) and its answers; what these look like is in
``reply_schemas``, and the rest follows from its kind.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.convertors import Convertor, FloatConvertor, IntegerConvertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from hotswap._version import __version__
from hotswap.http.openapi_errors import error_statuses
from hotswap.http.replies import Json
from hotswap.http.reply_schemas import REPLY_SCHEMAS
from hotswap.http.routes import KindedRoute, is_public
from hotswap.http.served import served

__all__ = ["document", "openapi", "summary_of"]

_REFERENCE = "#/components/schemas/{name}"
_JSON = "application/json"
_TEXT = "text/plain"
_BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})
_PATH_SCHEMAS: Mapping[type[Convertor[Any]], Mapping[str, object]] = {
    IntegerConvertor: {"type": "integer", "minimum": 0},
    FloatConvertor: {"type": "number", "minimum": 0},
}

_SECURITY: Mapping[str, Mapping[str, str]] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "gr": {"type": "apiKey", "in": "header", "name": "X-GR-API-Key"},
}


async def openapi(request: Request) -> Response:
    """This document: every route with its arguments and answers."""
    settings = served(request).settings
    has_keys = settings.api_key is not None or settings.admin_api_key is not None
    root = str(request.scope.get("root_path") or "/")
    return Json(document(request.app.routes, has_keys=has_keys, root=root))


def document(
    routes: Iterable[BaseRoute], *, has_keys: bool = False, root: str = "/"
) -> dict[str, object]:
    """The document of ``routes``; those that say no kind never run and are left out.

    ``root`` is where the app is mounted; with ``has_keys`` routes tell that they ask for one.
    """
    shown = [route for route in routes if isinstance(route, KindedRoute)]
    schemas = _schemas(shown)
    paths: dict[str, dict[str, object]] = {}
    for route in shown:
        for method in sorted(set(route.methods or ()) - {"HEAD"}):
            operation = _operation(route, method, schemas, has_keys=has_keys)
            # The first route wins, as in the router.
            paths.setdefault(route.path_format, {}).setdefault(method.lower(), operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "hotswap", "version": __version__},
        "servers": [{"url": root}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": _SECURITY if has_keys else {}},
    }


def summary_of(route: KindedRoute) -> str:
    """The first line of the docstring of what answers; empty when it has none."""
    endpoint = route.endpoint
    described = endpoint if inspect.isroutine(endpoint) else type(endpoint)
    # Not inspect.getdoc: a class without a docstring must not answer with its parent's.
    text = inspect.cleandoc(described.__doc__ or "")
    return " ".join(text.partition("\n\n")[0].split())


def _schemas(routes: Sequence[KindedRoute]) -> dict[str, Any]:
    bodies = {route.body: None for route in routes if route.body is not None}
    _, components = msgspec.json.schema_components(
        bodies, schema_hook=_anything, ref_template=_REFERENCE
    )
    return dict(components)


def _anything(_kind: type) -> dict[str, object]:
    """The schema of a field that is looked at by hand, such as an ``object``."""
    # msgspec takes an empty schema for none.
    return {"description": "Any value."}


def _operation(
    route: KindedRoute, method: str, schemas: Mapping[str, Any], *, has_keys: bool
) -> dict[str, object]:
    operation: dict[str, object] = {
        "operationId": f"{method.lower()}{re.sub(r'[^a-zA-Z0-9]+', '_', route.path_format)}",
        "summary": summary_of(route),
        "tags": [route.kind.value],
        "parameters": [*_path_parameters(route), *_query_parameters(route, method, schemas)],
        "responses": _responses(route, method),
    }
    if method in _BODY_METHODS and route.body is not None:
        reference = _REFERENCE.format(name=_name(route.body))
        operation["requestBody"] = {
            "required": bool(schemas[_name(route.body)].get("required")),
            "content": {_JSON: {"schema": {"$ref": reference}}},
        }
    if has_keys and not is_public(route):
        operation["security"] = [{name: []} for name in _SECURITY]
    return operation


def _name(body: type[msgspec.Struct]) -> str:
    # As msgspec names a component.
    return re.sub(r"[^a-zA-Z0-9._-]", "_", body.__name__)


def _path_parameters(route: KindedRoute) -> list[dict[str, object]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _path_schema(convertor)}
        for name, convertor in route.param_convertors.items()
    ]


def _path_schema(convertor: Convertor[Any]) -> Mapping[str, object]:
    return _PATH_SCHEMAS.get(type(convertor), {"type": "string", "minLength": 1})


def _query_parameters(
    route: KindedRoute, method: str, schemas: Mapping[str, Any]
) -> list[dict[str, object]]:
    """The fields of the body, for methods that carry none."""
    if method in _BODY_METHODS or route.body is None:
        return []
    schema = schemas[_name(route.body)]
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": field}
        for name, field in schema.get("properties", {}).items()
    ]


def _responses(route: KindedRoute, method: str) -> dict[str, object]:
    answers: dict[str, object] = {
        str(status): {
            "description": HTTPStatus(status).phrase,
            "content": {media: _reply_schema(media, route) for media in medias},
        }
        for status, medias in route.answers.items()
    }
    for status in error_statuses(route, takes_body=method in _BODY_METHODS):
        # A probe's 503 is its answer, and not an error.
        answers.setdefault(str(status), _error_response(route, status))
    return answers


def _reply_schema(media: str, route: KindedRoute) -> dict[str, object]:
    if media != _JSON:
        return {"schema": {"type": "string"}}
    return {"schema": REPLY_SCHEMAS.get(route.path, {})}


def _error_response(route: KindedRoute, status: int) -> dict[str, object]:
    content: dict[str, object] = {_JSON: {"schema": {"type": "object"}}}
    if any(_TEXT in medias for medias in route.answers.values()):
        # What answers as a text in one dialect fails as a text too.
        content[_TEXT] = _reply_schema(_TEXT, route)
    return {"description": HTTPStatus(status).phrase, "content": content}
