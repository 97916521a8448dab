"""Requests made from the OpenAPI document, and what no reply to them may be."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema_rs
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.core.result import Ok

__all__ = ["Fuzzed", "fuzz", "operations_of"]

# The only 5xx that a client may be told: what it asks for is not possible just now.
_EXPECTED_503 = frozenset({"paused", "weights_not_whole"})
_PROBES = frozenset({"/health", "/health_generate", "/ready"})

# They have no end to wait for.
_ENDLESS = frozenset({"/hotswap/v1/events"})

Fuzzed = dict[str, dict[int, int]]
"""How often each operation answered each status."""


def operations_of(client: httpx.Client) -> dict[str, Any]:
    """Every operation of the server's document, which is a valid one, by method and path."""
    document = client.get("/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    schema.validate()
    every = schema.get_all_operations()
    operations = [result.ok() for result in every if isinstance(result, Ok)]
    told = {
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method in methods
    }
    found = {f"{each.method.upper()} {each.path}": each for each in operations}
    assert set(found) == told
    return {name: each for name, each in found.items() if each.path not in _ENDLESS}


def fuzz(
    operation: Any, base_url: str, *, examples: int, mode: GenerationMode = GenerationMode.POSITIVE
) -> dict[int, int]:
    """Send ``examples`` requests to one operation; how often each status came.

    Raises: AssertionError for a reply that the document does not know, or a 5xx,
    jsonschema_rs.ValidationError for one that is unlike its schema.
    """
    seen: dict[int, int] = {}

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        reply = case.call(base_url=base_url, timeout=60)
        _check(operation, case, reply)
        seen[reply.status_code] = seen.get(reply.status_code, 0) + 1

    send()
    return seen


def _check(operation: Any, case: Any, reply: Any) -> None:
    told = operation.definition.raw["responses"]
    shown = f"{case.as_curl_command()} -> {reply.status_code} {reply.text[:500]}"
    assert str(reply.status_code) in told, shown
    media = reply.headers.get("content-type", [""])[0].partition(";")[0]
    # A reply without a body, such as that of an abort, has no form to speak of.
    assert not reply.content or media in told[str(reply.status_code)]["content"], shown
    if reply.content and media == "application/json" and reply.status_code < 300:
        schema = told[str(reply.status_code)]["content"][media]["schema"]
        jsonschema_rs.validate(schema, json.loads(reply.content))
    if reply.status_code >= 500 and operation.path not in _PROBES:
        assert reply.status_code == 503, shown
        assert _EXPECTED_503 & _codes_of(reply.text), shown


def _codes_of(text: str) -> set[object]:
    error = json.loads(text)["error"]
    return {error.get("code"), error.get("type")}
