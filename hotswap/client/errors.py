"""Errors that only a client can have, and what any error says about the weights.

What the server refused or failed at has the same class as on the server
(:mod:`hotswap.errors`): ``UpdateRejected``, ``UpdateFailed``, ``Busy``...
"""

from __future__ import annotations

from enum import StrEnum

from hotswap.errors import HotswapError, UpdateFailed, UpdateRolledBack

__all__ = [
    "NoAnswer",
    "NotReady",
    "OutcomeUnknown",
    "ReplyMalformed",
    "RequestRefused",
    "StillPaused",
    "WeightsAfter",
    "weights_after",
]


class NoAnswer(HotswapError):
    """The server did not answer in time. No update of ours can have changed its weights."""

    retryable = True


class NotReady(HotswapError):
    """The server answered, and did not become ready in time; the message has its reasons."""

    retryable = True


class RequestRefused(HotswapError):
    """The server answered with an error that no command had a part in (a key, a route).

    ``status`` is the HTTP status; 0 when HTTP does not allow the request itself (one of its
    headers), so that it was not sent.
    """

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class ReplyMalformed(HotswapError):
    """The server answered, and not as a server of hotswap's or SGLang's does.

    The message says what was seen and what was wanted. No update has it: one whose reply nobody
    can read is looked for in the server's state, as one whose reply was lost.
    """


class OutcomeUnknown(HotswapError):
    """An update was sent, and nobody could say what became of it.

    Look at the server's state. Sending the update again is safe: it loads the whole
    checkpoint anew.
    """

    retryable = True


class StillPaused(HotswapError):
    """The work is done, and the server that was paused for it could not be continued."""

    retryable = True


class WeightsAfter(StrEnum):
    """What an error says about the weights of the server."""

    UNTOUCHED = "untouched"
    PUT_BACK = "put_back"
    NOT_WHOLE = "not_whole"
    UNKNOWN = "unknown"


def weights_after(error: BaseException) -> WeightsAfter:
    """What happened to the weights in a call that raised ``error``.

    Anything that hotswap did not raise (a cancellation, Ctrl-C) leaves it unknown.
    """
    if isinstance(error, UpdateFailed):
        return WeightsAfter.NOT_WHOLE
    if isinstance(error, UpdateRolledBack):
        return WeightsAfter.PUT_BACK
    if isinstance(error, OutcomeUnknown) or not isinstance(error, HotswapError):
        return WeightsAfter.UNKNOWN
    return WeightsAfter.UNTOUCHED
