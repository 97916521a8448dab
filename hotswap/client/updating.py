"""The steps of an update, and what to make of one whose reply never came.

Rule: an update is sent again only when it is known not to have been done, or when it is
absolute, as one from a directory is: the same bytes in the same places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotswap.client.commands import flush, state
from hotswap.client.effects import NoReply, Steps, sleep
from hotswap.client.errors import NoAnswer, OutcomeUnknown
from hotswap.client.replies import body_of, update_error
from hotswap.client.session import Budget, ServerKind, Session, is_busy, tell_of_retry
from hotswap.client.shown import ServerState, UpdateResult
from hotswap.errors import HotswapError, UpdateFailed, UpdateRejected, UpdateRolledBack

__all__ = ["UpdateRequest", "default_mode", "kind_for", "result_of", "update"]

_PATH = "/update_weights_from_disk"
_POLL_S = 0.5
_IN_PLACE = "in_place"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRequest:
    """What an update is to do; ``source`` is a directory that the server can read.

    ``strategy`` is the load strategy that reads it, the server's own choice when None.
    Refused flushes are tried ``flush_times`` times, ``flush_every_s`` apart. ``attempts``
    bounds how often the update itself is sent.
    """

    source: str
    strategy: str | None = None
    version: str | None = None
    token_step: int | None = None
    pause_mode: str | None = None
    flush_cache: bool = True
    flush_times: int = 60
    flush_every_s: float = 1.0
    attempts: int = 3


def default_mode(kind: ServerKind) -> str:
    """How requests in flight are met unless the caller says how.

    hotswap parks them and none is lost. SGLang cannot flush beside parked ones.
    """
    return "retract" if kind is ServerKind.HOTSWAP else "abort"


def kind_for(session: Session, wanted: UpdateRequest, *, budget: Budget) -> Steps[ServerKind]:
    """Whose server it is, to be known before anything is paused.

    Raises: UpdateRejected for what such a server does not have; NoAnswer, RequestRefused.
    """
    kind = yield from session.kind_of_server(budget)
    if wanted.strategy is not None and kind is ServerKind.SGLANG:
        raise UpdateRejected(
            f"{_doing(session, wanted)} was not sent: SGLang's servers have no load "
            f"strategies, and this is for {wanted.strategy!r}; leave the strategy out"
        )
    return kind


def update(session: Session, wanted: UpdateRequest, *, budget: Budget) -> Steps[UpdateResult]:
    """Flush inside a fence; send; find out what happened when no reply comes.

    Raises: UpdateRejected, UpdateRolledBack, UpdateFailed, CommandError, RequestRefused,
    NoAnswer (nothing was sent), OutcomeUnknown.
    """
    kind = yield from kind_for(session, wanted, budget=budget)
    before = yield from state(session, budget=budget)
    if session.fences and wanted.flush_cache and session.fences[-1] != _IN_PLACE:
        # Requests frozen in place keep their keys and values: such a flush never succeeds.
        yield from flush(
            session, times=wanted.flush_times, every_s=wanted.flush_every_s, budget=budget
        )
    body = _body(session, kind, wanted)
    for attempt in range(1, wanted.attempts + 1):
        found = yield from _attempt(session, wanted, body, before, budget)
        if found is not None:
            return found
        if budget.left_s <= _POLL_S or attempt == wanted.attempts:
            break
        tell_of_retry(f"{_doing(session, wanted)}: sent {attempt} times and not done", budget)
        yield from sleep(_POLL_S)
    raise NoAnswer(
        f"{_doing(session, wanted)}: sent {attempt} times within {budget.seconds:g} s, and the "
        "server has not done it; look at its log, and send the update again"
    )


def _attempt(
    session: Session,
    wanted: UpdateRequest,
    body: Mapping[str, object],
    before: ServerState,
    budget: Budget,
) -> Steps[UpdateResult | None]:
    """The result; None when it was not done and may be sent again."""
    try:
        reply = yield from session.ask_once(_PATH, budget, body=body)
    except NoReply as error:
        if error.final:
            raise session.not_sent(_PATH, error) from error
        if not error.sent:
            return None
        return (yield from _found_out(session, wanted, before, budget, error))
    if reply.status == 200 and body_of(reply).get("success") is True:
        return result_of(wanted, body_of(reply))
    failure = update_error(reply, doing=_doing(session, wanted))
    if is_busy(failure):
        return None
    if isinstance(failure, OutcomeUnknown):
        return (yield from _found_out(session, wanted, before, budget, failure))
    raise failure


def _body(session: Session, kind: ServerKind, wanted: UpdateRequest) -> dict[str, object]:
    fenced = bool(session.fences)
    frozen = fenced and session.fences[-1] == _IN_PLACE
    body: dict[str, object] = {
        "model_path": wanted.source,
        # SGLang's scheduler dies of a flush beside requests that hold keys and values.
        "flush_cache": wanted.flush_cache and not (frozen and kind is ServerKind.SGLANG),
    }
    if wanted.strategy is not None:
        body["strategy"] = wanted.strategy
    if wanted.version is not None:
        body["weight_version"] = wanted.version
    if wanted.token_step is not None:
        body["token_step"] = wanted.token_step
    if not fenced:
        body["pause_mode"] = wanted.pause_mode or default_mode(kind)
    return body


def _found_out(
    session: Session,
    wanted: UpdateRequest,
    before: ServerState,
    budget: Budget,
    cause: Exception,
) -> Steps[UpdateResult | None]:
    """What became of an update, by the state of the server once it is over.

    Raises: UpdateFailed, OutcomeUnknown.
    """
    while True:
        try:
            now = yield from state(session, budget=budget)
        except HotswapError as error:
            raise session.unknown(_doing(session, wanted), f"{cause}; then {error}") from cause
        if not any(running.source == wanted.source for running in now.updates):
            return _judged(session, wanted, before, now, cause)
        if budget.left_s <= _POLL_S:
            raise session.unknown(_doing(session, wanted), f"{cause}; it still runs") from cause
        yield from sleep(_POLL_S)


def _judged(
    session: Session,
    wanted: UpdateRequest,
    before: ServerState,
    now: ServerState,
    cause: Exception,
) -> UpdateResult | None:
    if now.weights == "torn":
        raise UpdateFailed(
            f"{_doing(session, wanted)}: {cause}; the weights of the server are torn and it "
            "generates nothing: send a full update"
        ) from cause
    if _is_done(wanted, before, now):
        return UpdateResult(
            source=wanted.source,
            weight_version=now.weight_version,
            weight_epoch=now.weight_epoch,
            confirmed_by="state",
        )
    if isinstance(cause, NoReply):
        return None
    if now.weights == "whole":
        raise UpdateRolledBack(f"{cause}; the weights are whole, and what they were") from cause
    raise cause


def _is_done(wanted: UpdateRequest, before: ServerState, now: ServerState) -> bool:
    if now.weight_epoch is not None and before.weight_epoch is not None:
        later = now.weight_epoch > before.weight_epoch
        named = wanted.version is None or _same(now.weight_version, wanted.version)
        return later and named and now.model_path == wanted.source
    # SGLang counts nothing: only a label that it did not have before tells.
    changed = now.weight_version != before.weight_version
    return wanted.version is not None and changed and _same(now.weight_version, wanted.version)


def _same(shown: str | None, asked: str) -> bool:
    """Whether two labels are one: those that are numbers are compared as numbers."""
    if shown is not None and shown.isdecimal() and asked.isdecimal():
        return int(shown) == int(asked)
    return shown == asked


def result_of(wanted: UpdateRequest, body: Mapping[str, Any]) -> UpdateResult:
    """What the ``body`` of a reply says that an update did."""
    return UpdateResult(
        source=wanted.source,
        weight_version=body.get("weight_version", wanted.version),
        weight_epoch=body.get("weight_epoch"),
        tensors=body.get("tensors_loaded"),
        bytes=body.get("bytes"),
        mode=body.get("mode"),
        elements_moved=body.get("elements_moved"),
        staged_ms=body.get("staged_ms"),
        paused_ms=body.get("paused_ms"),
        elapsed_ms=body.get("elapsed_ms"),
        num_aborted_requests=body.get("num_aborted_requests"),
        num_paused_requests=_count(body.get("num_paused_requests")),
        missing=tuple(body.get("missing") or ()),
        unknown=tuple(body.get("unknown") or ()),
        shown=body,
    )


def _count(shown: object) -> int | None:
    """SGLang tells one number, or one for each data-parallel rank."""
    if isinstance(shown, list):
        return sum(part for part in shown if isinstance(part, int))
    return shown if isinstance(shown, int) else None


def _doing(session: Session, wanted: UpdateRequest) -> str:
    return f"update of {session.url} from {wanted.source}"
