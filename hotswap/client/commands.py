"""The steps of every command but an update."""

from __future__ import annotations

from hotswap.client.effects import Reply, Steps, sleep
from hotswap.client.errors import NoAnswer, NotReady, StillPaused
from hotswap.client.replies import body_of, command_error, message_of
from hotswap.client.session import Budget, ServerKind, Session
from hotswap.client.shown import ServerState, server_state, sglang_state
from hotswap.errors import HotswapError, InFlight

__all__ = ["enter_fence", "flush", "leave_fence", "pause", "resume", "state", "wait_ready"]

_POLL_S = 0.5


def pause(session: Session, *, mode: str | None, budget: Budget) -> Steps[None]:
    """Close the gate. Twice is once. Raises: NoAnswer, RequestRefused, CommandError."""
    body = {} if mode is None else {"mode": str(mode)}
    reply = yield from session.ask("/pause_generation", budget, body=body)
    _check(session, "/pause_generation", reply)


def resume(session: Session, *, budget: Budget) -> Steps[None]:
    """Open the gate; nothing when it is open. Raises: NoAnswer, RequestRefused, CommandError."""
    reply = yield from session.ask("/continue_generation", budget, body={})
    _check(session, "/continue_generation", reply)


def flush(session: Session, *, times: int, every_s: float, budget: Budget) -> Steps[int | None]:
    """Ask until it is done: cached prefixes that were dropped, where the server tells.

    Raises: InFlight after ``times`` refusals; NoAnswer, RequestRefused.
    """
    path, asked = "/flush_cache", 0
    while True:
        reply = yield from session.ask(path, budget, body={}, patient=False)
        asked += 1
        if reply.status == 200:
            cleared = body_of(reply).get("entries_cleared")
            return cleared if isinstance(cleared, int) else None
        if reply.status != 400:
            raise command_error(reply, doing=f"{session.url}{path}")
        if asked >= times or budget.left_s <= every_s:
            raise InFlight(
                f"{session.url}{path} was refused {asked} times: {message_of(reply)}; wanted no "
                "request that holds keys and values: pause with abort or retract, or wait longer"
            )
        yield from sleep(every_s)


def state(session: Session, *, budget: Budget) -> Steps[ServerState]:
    """One look. Raises: NoAnswer, RequestRefused."""
    kind = yield from session.kind_of_server(budget)
    if kind is ServerKind.HOTSWAP:
        reply = yield from session.ask("/status", budget)
        _check(session, "/status", reply)
        return server_state(body_of(reply))
    info = yield from session.ask("/model_info", budget)
    _check(session, "/model_info", info)
    loads = yield from session.ask("/v1/loads?include=core", budget)
    health = yield from session.ask("/ping", budget)
    if health.status == 404:
        health = yield from session.ask("/health", budget)
    ready = health.status == 200
    return sglang_state(body_of(info), body_of(loads), ready=ready)


def wait_ready(session: Session, *, budget: Budget) -> Steps[None]:
    """Ask until a generation request would run now.

    Raises: NotReady with the last reasons; NoAnswer when nobody answered; RequestRefused.
    """
    kind = yield from session.kind_of_server(budget)
    path = "/ready" if kind is ServerKind.HOTSWAP else "/health"
    while True:
        reply = yield from session.ask(path, budget)
        if reply.status == 200:
            return
        if reply.status != 503:
            raise command_error(reply, doing=f"{session.url}{path}")
        if budget.left_s <= _POLL_S:
            reasons = body_of(reply).get("reasons") or ["status 503"]
            raise NotReady(
                f"{session.url} was not ready within {budget.seconds:g} s: "
                f"{', '.join(map(str, reasons))}; put that right, or wait longer"
            )
        yield from sleep(_POLL_S)


def enter_fence(session: Session, *, mode: str | None, budget: Budget) -> Steps[None]:
    """Pause; also inside another fence, whose own pause may not be in effect yet."""
    session.fences.append(mode)
    yield from pause(session, mode=mode, budget=budget)


def leave_fence(
    session: Session, *, error: BaseException | None, entering: bool, budget: Budget
) -> Steps[None]:
    """Continue what was paused, if this is the last fence of the client.

    ``error`` ended the body of the fence, or its beginning (``entering``): a pause that
    nobody knows to have failed may still come into effect. It gets a note when the
    server stays paused. Raises: StillPaused when there is no other error.
    """
    session.fences.pop()
    if session.fences or (entering and _surely_refused(error)):
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


def _surely_refused(error: BaseException | None) -> bool:
    return isinstance(error, HotswapError) and not isinstance(error, NoAnswer)


def _check(session: Session, path: str, reply: Reply) -> None:
    if reply.status >= 400:
        raise command_error(reply, doing=f"{session.url}{path}")
