"""What each dialect tells of one outcome, as its protocol has it.

Rule: nothing here asks a server what it would say. Every refusal of the faults' tests is
compared with this table, its whole envelope included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.process.http_client import Client

__all__ = ["flush_refused", "flushed", "refusal", "status_of"]

# GR's code of each outcome, its status, and SGLang's, which knows 400 for every refusal.
_TABLE: Mapping[str, tuple[str, int, int]] = {
    "rejected": ("validation_error", 400, 400),
    "conflict": ("conflict", 409, 400),
    "update failed": ("update_failed", 500, 400),
    "no such weight": ("not_found", 404, 400),
    "differs": ("weights_differ", 400, 400),
    "id taken": ("duplicate_request_id", 409, 400),
    "unknown id": ("not_found", 404, 404),
    "too many": ("too_many_requests", 413, 413),
    "paused": ("paused", 503, 503),
    "not whole": ("weights_not_whole", 503, 503),
    "too slow": ("generate_timeout", 504, 504),
}
_RETRYABLE = {"conflict", "paused", "not whole", "too slow"}

_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


def status_of(dialect: str, outcome: str) -> int:
    """The status that ``outcome`` is answered with."""
    _, of_gr, of_sglang = _TABLE[outcome]
    return of_gr if dialect == "gr" else of_sglang


def refusal(
    dialect: str, outcome: str, answer: tuple[int, Any], *, reports_success: bool = True
) -> str:
    """The message of ``answer``, which has to tell of ``outcome`` in the very words of ``dialect``.

    ``reports_success`` is for update and control routes. Raises: AssertionError.
    """
    status, body = answer
    code = _TABLE[outcome][0]
    assert status == status_of(dialect, outcome), (outcome, answer)
    message = body["error"]["message"] if dialect == "gr" else body["message"]
    retryable = outcome in _RETRYABLE
    top: dict[str, object] = {}
    if reports_success:
        top = {"success": False, "message": message, "error_message": message}
    if dialect == "gr":
        error: dict[str, object] = {"code": code, "status": status}
    else:
        top |= {"object": "error", "message": message, "param": None, "code": status}
        top |= {"type": "Bad Request" if status == 400 else str(status)}
        error = {"code": status, "type": "invalid_request_error" if status == 400 else code}
    if dialect == "gr" or not reports_success:
        top |= {"error": {**error, "message": message, "retryable": retryable}}
    assert body == top, (outcome, answer)
    return str(message)


async def flushed(client: Client, dialect: str) -> int | None:
    """Flush, which has to succeed; how many entries went, where the dialect tells."""
    reply = await client.call("POST", "/flush_cache")
    assert reply.status_code == 200, reply.text
    if dialect == "sglang":
        assert reply.text == _FLUSHED
        return None
    entries = reply.json()["entries_cleared"]
    assert reply.json() == {
        "success": True,
        "entries_cleared": entries,
        "message": "Cache flushed.",
    }
    return int(entries)


async def flush_refused(client: Client, dialect: str, *, code: str = "conflict") -> str:
    """Flush, which must not succeed now; why. ``code`` is GR's."""
    reply = await client.call("POST", "/flush_cache")
    if dialect == "sglang":
        assert reply.status_code == 400
        assert reply.headers["content-type"].startswith("text/plain")
        assert reply.text.endswith("\n")
        return reply.text
    body = reply.json()
    message = body["error"]["message"]
    assert (reply.status_code, body) == (
        400,
        {
            "error": {"code": code, "message": message, "retryable": True, "status": 400},
            "success": False,
            "message": message,
            "error_message": message,
        },
    )
    return str(message)
