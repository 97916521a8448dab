"""From a reply to its body, or to the error that it stands for.

Rules, in this order, because SGLang's envelope has no room for a class:

* ``X-Hotswap-Error`` names the class; every error reply of a hotswap server has it.
* ``error.code`` of GR's envelope names it nearly as well.
* What SGLang's own servers write is judged by their words (``sglang_failure``).

Only 2xx is success, and something on the way may have answered in the server's place: a proxy
whose server is away, a page that asks people to log in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hotswap import errors
from hotswap.client.effects import Reply
from hotswap.client.errors import OutcomeUnknown, RequestRefused
from hotswap.client.fields import Fields, malformed

__all__ = [
    "CODES",
    "body_of",
    "command_error",
    "fields_of",
    "is_of_proxy",
    "is_redirect",
    "is_signed",
    "is_success",
    "message_of",
    "no_page",
    "tells_of_failure",
    "update_error",
]

_HEADER = "x-hotswap-error"

# What proxies answer when the server behind them does not.
_OF_PROXIES = (502, 503, 504)
_PAGE = re.compile(rb"\s*<(!doctype\s+html|html)\b", re.IGNORECASE)
# Of a page no more is looked at than its head can be.
_HEAD_BYTES = 4096
_TITLE = re.compile(r"<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)

CODES: Mapping[str, type[errors.HotswapError]] = {
    "busy": errors.Busy,
    "overtaken": errors.Overtaken,
    "overloaded": errors.QueueFull,
    "paused": errors.Paused,
    "weights_not_whole": errors.WeightsNotWhole,
    "update_rolled_back": errors.UpdateRolledBack,
    "update_failed": errors.UpdateFailed,
    "shutting_down": errors.ShuttingDown,
    # About a published version or its local copy; which class it is, only the header says.
    "base_changed": errors.UpdateRejected,
    "delta_damaged": errors.UpdateRejected,
    "disk_full": errors.UpdateRejected,
    "local_damaged": errors.UpdateRejected,
    "local_disk_failed": errors.UpdateRejected,
    "not_pulled": errors.UpdateRejected,
    "out_of_order": errors.UpdateRejected,
    "outside_roots": errors.UpdateRejected,
    "pull_pending": errors.UpdateRejected,
    "source_not_ready": errors.UpdateRejected,
    "source_unusable": errors.UpdateRejected,
    "unknown_encoding": errors.UpdateRejected,
    "version_malformed": errors.UpdateRejected,
    "version_missing": errors.UpdateRejected,
}
"""Codes of GR's envelope that mean one class each; ``conflict`` means two."""

_REQUEST_WRONG = (400, 404, 405, 409, 413, 422)

# SGLang's scheduler had loaded nothing yet when it says one of these.
_BEFORE_LOADING = ("Failed to get weights iterator", "Failed to get model loader")
_HALF_LOADED = ("Failed to update weights", "partially updated")


def body_of(reply: Reply) -> dict[str, Any]:
    """The JSON object of a reply; an empty one for any other body."""
    try:
        body = json.loads(reply.body)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def is_success(reply: Reply) -> bool:
    """Whether it is 2xx. Nothing else is: a redirect was followed by nobody."""
    return 200 <= reply.status < 300


def is_redirect(reply: Reply) -> bool:
    """Whether it sends the client elsewhere, where nobody goes."""
    return 300 <= reply.status < 400


def is_of_proxy(reply: Reply) -> bool:
    """Whether something on the way says that the server did not answer it.

    Errors of hotswap's servers have their header; SGLang's own have an envelope.
    """
    if reply.status not in _OF_PROXIES or _HEADER in reply.headers:
        return False
    body = body_of(reply)
    return not ({"object", "success"} & body.keys() or isinstance(body.get("error"), dict))


def no_page(reply: Reply, *, at: str) -> Reply:
    """``reply``, unless it is a page for people, or was not read. Raises: ReplyMalformed."""
    if reply.flaw is not None or _is_page(reply):
        seen = f"{reply.status} and {message_of(reply)}"
        raise malformed(at, seen=seen, wanted="its own reply")
    return reply


def fields_of(reply: Reply, *, at: str) -> Fields:
    """The fields of a reply that is an object. Raises: ReplyMalformed for any other body."""
    try:
        body = json.loads(reply.body)
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, dict):
        return Fields(body, at=at, hide=reply.hide)
    seen = message_of(reply) if reply.flaw or reply.body.strip() else "no body"
    raise malformed(at, seen=f"{reply.status} and {seen:.200}", wanted="a JSON object")


def _is_page(reply: Reply) -> bool:
    kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "text/html" or _PAGE.match(reply.body) is not None


def _page(reply: Reply) -> str:
    """What to call a page: its title, where it has one."""
    title = _TITLE.search(reply.body[:_HEAD_BYTES].decode(errors="replace"))
    named = " ".join(title[1].split())[:200] if title else ""
    return f"an HTML page {named!r}" if named else "an HTML page"


def message_of(reply: Reply) -> str:
    """What a reply says for people, in whichever envelope it came, without the client's keys."""
    return reply.hide(_message(reply))


def _message(reply: Reply) -> str:
    if reply.flaw is not None:
        return reply.flaw
    if is_redirect(reply):
        where = reply.headers.get("location")
        sent = "a redirect" if where is None else f"a redirect to {where[:500]!r}"
        return f"{sent}, which is not followed; give the address of the server itself"
    if _is_page(reply):
        return _page(reply)
    body = body_of(reply)
    error = body.get("error")
    nested = error.get("message") if isinstance(error, dict) else error
    found = nested or body.get("message") or body.get("error_message") or body.get("detail")
    text = str(found) if found else reply.body.decode(errors="replace")
    return " ".join(text.split())[:2000] or "nothing more"


def command_error(reply: Reply, *, doing: str) -> errors.HotswapError:
    """The error of a reply to anything but an update."""
    message = _told(reply, doing=doing)
    kind = _class_of(reply)
    if kind is not None and issubclass(kind, errors.HotswapError):
        return _raised(kind, message, reply)
    return RequestRefused(message, status=reply.status)


def update_error(reply: Reply, *, doing: str) -> errors.HotswapError:
    """The error of a reply to an update: its class says what happened to the weights."""
    message = _told(reply, doing=doing)
    kind = _class_of(reply)
    if kind is not None:
        return _raised(kind, message, reply)
    if reply.status in (401, 403, 404, 405) or is_redirect(reply):
        return RequestRefused(message, status=reply.status)
    if _is_sglang_failure(reply):
        return _sglang_failure(reply)(message)
    if reply.status in _REQUEST_WRONG:
        return errors.UpdateRejected(message)
    return OutcomeUnknown(
        f"{message}, which does not say whether it changed the weights: look at the state of the "
        "server, and send the update again if it did not"
    )


def tells_of_failure(reply: Reply) -> bool:
    """Whether the server itself says that a command failed; else something answered for it, or
    it died of it."""
    body = body_of(reply)
    error = body.get("error")
    in_envelope = isinstance(error, dict) and "code" in error
    return _HEADER in reply.headers or in_envelope or body.get("success") is False


def is_signed(reply: Reply) -> bool:
    """Whether it has the envelope of a server of hotswap's or SGLang's, in either dialect."""
    return tells_of_failure(reply) or body_of(reply).get("object") == "error"


def _told(reply: Reply, *, doing: str) -> str:
    said = f"{doing}: the server answered {reply.status}: {message_of(reply)}"
    return said if reply.status not in (401, 403) else f"{said}; {_about_key(reply)}"


def _about_key(reply: Reply) -> str:
    """What to do about a key that is missing, or is not the right one."""
    if reply.key is None:
        return (
            "no key was sent: give api_key, or admin_key for what controls the server (at the "
            "terminal HOTSWAP_API_KEY, HOTSWAP_ADMIN_API_KEY)"
        )
    if reply.key == "admin_key":
        sent = "the admin_key that was sent (at the terminal HOTSWAP_ADMIN_API_KEY)"
        return f"{sent} is not that of the server"
    return (
        "the api_key that was sent (at the terminal HOTSWAP_API_KEY) is not what it takes here: "
        "give the server's, or admin_key (HOTSWAP_ADMIN_API_KEY) where it has one"
    )


def _raised(kind: type[errors.HotswapError], message: str, reply: Reply) -> errors.HotswapError:
    """As the server raised it, which may know that this one may be sent again."""
    error, body = kind(message), body_of(reply)
    envelope = body.get("error")
    told = envelope.get("retryable") if isinstance(envelope, dict) else body.get("retryable")
    if isinstance(told, bool):
        error.retryable = told
    held = body.get("local_version")
    # Only errors about a published version have one.
    if hasattr(error, "local_version") and isinstance(held, int) and not isinstance(held, bool):
        error.local_version = held
    return error


def _class_of(reply: Reply) -> type[errors.HotswapError] | None:
    """The class that the server raised, where it says so and the client has it."""
    named = reply.headers.get(_HEADER, "")
    if named in errors.__all__:
        found: type[errors.HotswapError] = getattr(errors, named)
        return found
    if named:
        # An edge error, which means what the route says, or one about a published version.
        return _stream_class(named) if "local_version" in body_of(reply) else None
    error = body_of(reply).get("error")
    if not isinstance(error, dict):
        return None
    if error.get("code") == "conflict":
        return errors.InFlight if error.get("retryable") else errors.IllegalCommand
    code = error.get("code")
    return CODES.get(code) if isinstance(code, str) else None


def _stream_class(named: str) -> type[errors.HotswapError] | None:
    # Imported when there is one: most clients never meet a stream.
    from hotswap.stream import errors as stream_errors

    found: object = getattr(stream_errors, named, None)
    if isinstance(found, type) and issubclass(found, errors.HotswapError):
        return found
    return None


def _is_sglang_failure(reply: Reply) -> bool:
    """Whether SGLang's own updater speaks, and not its check of the request."""
    body = body_of(reply)
    return body.get("success") is False and not {"object", "error"} & body.keys()


def _sglang_failure(reply: Reply) -> type[errors.HotswapError]:
    """SGLang rolls back by loading the same path again: nobody should trust the result."""
    said = message_of(reply)
    if said.startswith(_BEFORE_LOADING):
        return errors.UpdateRejected
    if any(words in said for words in _HALF_LOADED):
        return errors.UpdateFailed
    return OutcomeUnknown
