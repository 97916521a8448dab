"""The steps of every command but an update."""

from __future__ import annotations

import math

from hotswap.client.effects import Reply, Steps, sleep
from hotswap.client.errors import (
    NoAnswer,
    NotReady,
    ReplyMalformed,
    RequestRefused,
    StillPaused,
)
from hotswap.client.fields import Fields
from hotswap.client.replies import (
    body_of,
    command_error,
    fields_of,
    is_signed,
    is_success,
    message_of,
)
from hotswap.client.session import Budget, Fence, ServerKind, Session
from hotswap.client.shown import ServerState, server_state, sglang_state
from hotswap.errors import HotswapError, InFlight

__all__ = [
    "check_flushes",
    "enter_fence",
    "flush",
    "leave_fence",
    "pause",
    "resume",
    "state",
    "wait_ready",
]

_POLL_S = 0.5


def pause(session: Session, *, mode: str | None, budget: Budget) -> Steps[None]:
    """Close the gate. Twice is once.

    Raises: NoAnswer, RequestRefused, ReplyMalformed, CommandError.
    """
    reply = yield from _ask_to_pause(session, mode, budget)
    _done(session, "/pause_generation", reply)


def resume(session: Session, *, budget: Budget) -> Steps[None]:
    """Open the gate; nothing when it is open.

    Raises: NoAnswer, RequestRefused, ReplyMalformed, CommandError.
    """
    reply = yield from session.ask("/continue_generation", budget, body={})
    _done(session, "/continue_generation", reply)


def flush(session: Session, *, times: int, every_s: float, budget: Budget) -> Steps[int | None]:
    """Ask until it is done: cached prefixes that were dropped, where the server tells.

    Raises: InFlight after ``times`` refusals; NoAnswer, RequestRefused, ReplyMalformed;
    ValueError for numbers that are none.
    """
    check_flushes(times, every_s)
    path, asked = "/flush_cache", 0
    while True:
        reply = yield from session.ask(path, budget, body={}, patient=False)
        asked += 1
        if is_success(reply) and not _says_no(reply):
            # SGLang answers with a text.
            told = Fields(body_of(reply), at=f"{session.url}{path}", hide=reply.hide)
            return told.count("entries_cleared")
        if reply.status != 400:
            raise command_error(reply, doing=f"{session.url}{path}")
        pause_s = budget.pause_s(every_s)
        if asked >= times or pause_s is None:
            raise InFlight(
                f"{session.url}{path} was refused {asked} times: {message_of(reply)}; wanted no "
                "request that holds keys and values: pause with abort or retract, or wait longer"
            )
        yield from sleep(pause_s)


def check_flushes(times: int, every_s: float) -> None:
    """Raises: ValueError for how often, or how far apart, nothing can be asked for."""
    if times < 1:
        raise ValueError(f"a flush is to be asked for {times} times, wanted 1 or more")
    if not 0 <= every_s < math.inf:
        raise ValueError(f"there are {every_s:g} seconds between two flushes, wanted 0 or more")


def state(session: Session, *, budget: Budget) -> Steps[ServerState]:
    """One look. Raises: NoAnswer, RequestRefused, ReplyMalformed."""
    kind = yield from session.kind_of_server(budget)
    if kind is ServerKind.HOTSWAP:
        reply = yield from session.ask("/status", budget)
        return server_state(_fields(session, "/status", reply))
    info = yield from session.ask("/model_info", budget)
    told = _fields(session, "/model_info", info)
    path = "/v1/loads?include=core"
    loads = yield from session.ask(path, budget)
    health = yield from session.ask("/ping", budget, probe=True)
    if health.status == 404:
        health = yield from session.ask("/health", budget, probe=True)
    # It is not there in older ones.
    rows = loads if is_success(loads) else Reply(status=200, body=b"{}")
    return sglang_state(told, _fields(session, path, rows), ready=is_success(health))


def wait_ready(session: Session, *, budget: Budget) -> Steps[None]:
    """Ask until a generation request would run now.

    Raises: NotReady with the last reasons; NoAnswer when nobody answered; RequestRefused,
    ReplyMalformed.
    """
    kind = yield from session.kind_of_server(budget)
    path = "/ready" if kind is ServerKind.HOTSWAP else "/health"
    while True:
        reply = yield from session.ask(path, budget, probe=True)
        if is_success(reply):
            return
        if reply.status != 503:
            raise command_error(reply, doing=f"{session.url}{path}")
        pause_s = budget.pause_s(_POLL_S)
        if pause_s is None:
            at = f"{session.url}{path}"
            told = Fields(body_of(reply), at=at, hide=reply.hide).texts("reasons")
            raise NotReady(
                f"{session.url} was not ready within {budget.seconds:g} s: "
                f"{', '.join(told) or 'status 503'}; put that right, or wait longer"
            )
        yield from sleep(pause_s)


def enter_fence(session: Session, fence: Fence, *, budget: Budget) -> Steps[None]:
    """Pause; also inside another fence, whose own pause may not be in effect yet."""
    session.fences.append(fence)
    reply = yield from _ask_to_pause(session, fence.mode, budget)
    # A refusal speaks of the last request alone, and one that nobody signed may be of something
    # on the way that has passed the request on. Without the route there is nothing to continue.
    known = is_success(reply) or is_signed(reply) or reply.status in (404, 405)
    fence.in_doubt = reply.after_loss or not known
    _done(session, "/pause_generation", reply)


def leave_fence(
    session: Session,
    fence: Fence,
    *,
    error: BaseException | None,
    entering: bool,
    budget: Budget,
) -> Steps[None]:
    """Continue what was paused, if this is the last fence of the client.

    ``error`` ended the body of the fence, or its beginning (``entering``): a pause that
    nobody knows to have failed may still come into effect. It gets a note when the
    server stays paused. Raises: StillPaused when there is no other error.
    """
    # Not the last one that was entered: fences of several tasks overlap as they like.
    session.fences.remove(fence)
    if session.fences or (entering and not fence.in_doubt and _surely_refused(error)):
        return
    try:
        yield from resume(session, budget=budget)
    except HotswapError as failure:
        told = (
            f"{session.url} is still paused: {failure}; wanted to continue it: "
            "send /continue_generation (hotswap state tells whether that was enough)"
        )
        if error is None:
            raise StillPaused(told) from failure
        error.add_note(told)


def _ask_to_pause(session: Session, mode: str | None, budget: Budget) -> Steps[Reply]:
    body = {} if mode is None else {"mode": str(mode)}
    reply = yield from session.ask("/pause_generation", budget, body=body)
    return reply


def _surely_refused(error: BaseException | None) -> bool:
    if isinstance(error, RequestRefused) and error.status >= 500:
        # No command of the server says so: it may be in effect.
        return False
    return isinstance(error, HotswapError) and not isinstance(error, NoAnswer | ReplyMalformed)


def _fields(session: Session, path: str, reply: Reply) -> Fields:
    """Raises: RequestRefused, CommandError for what is no success; ReplyMalformed."""
    at = f"{session.url}{path}"
    if not is_success(reply):
        raise command_error(reply, doing=at)
    return fields_of(reply, at=at)


def _done(session: Session, path: str, reply: Reply) -> None:
    """Raises: as ``_fields``, and for a success that says that it is none."""
    _fields(session, path, reply)
    if _says_no(reply):
        raise command_error(reply, doing=f"{session.url}{path}")


def _says_no(reply: Reply) -> bool:
    body = body_of(reply)
    return body.get("success") is False or bool(body.get("error"))
