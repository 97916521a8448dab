"""The steps of an update, and what to make of one whose reply never came.

Rule: an update is sent again only when it is known not to have been done, or when it is
absolute, as one from a directory is: the same bytes in the same places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hotswap.client.commands import check_flushes, flush, state
from hotswap.client.doubt import Aim, judge_refusal, look_until_over, reason_of, torn
from hotswap.client.effects import NoReply, Reply, Steps, sleep
from hotswap.client.errors import NoAnswer, OutcomeUnknown, ReplyMalformed
from hotswap.client.fields import Fields
from hotswap.client.replies import body_of, is_signed, tells_of_failure, update_error
from hotswap.client.session import Budget, ServerKind, Session, is_busy, tell_of_retry
from hotswap.client.shown import ServerState, UpdateResult, push_coverage
from hotswap.errors import HotswapError, UpdateRejected, UpdateRolledBack

__all__ = [
    "UpdateRequest",
    "check_labels",
    "default_mode",
    "is_same_label",
    "kind_for",
    "outcome",
    "update",
]

_PATH = "/update_weights_from_disk"
_POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRequest:
    """What an update is to do; ``source`` is a directory that the server can read.

    ``strategy`` is the load strategy that reads it, the server's own choice when None.
    Refused flushes are tried ``flush_times`` times, ``flush_every_s`` apart. ``attempts``
    bounds how often the update itself is sent.

    Raises: ValueError, TypeError for what cannot be sent, before anything is paused for it.
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

    def __post_init__(self) -> None:
        check_flushes(self.flush_times, self.flush_every_s)
        check_labels(
            token_step=self.token_step,
            source=self.source,
            strategy=self.strategy,
            version=self.version,
        )


def check_labels(*, token_step: object, **texts: object) -> None:
    """Raises: TypeError for what is no text, or no whole number; ValueError for a text that has
    what is no Unicode, as the name of a file may have."""
    if token_step is not None and (isinstance(token_step, bool) or not isinstance(token_step, int)):
        raise TypeError(f"token_step is {token_step!r:.80}, wanted a whole number")
    for name, text in texts.items():
        if text is None:
            continue
        if not isinstance(text, str):
            raise TypeError(f"{name} is a {type(text).__name__}, wanted a text")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{name} is {text!a:.200}, which no JSON can have; wanted a name in UTF-8"
            ) from None


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
    if session.fences and wanted.flush_cache and not session.is_frozen:
        # Requests frozen in place keep their keys and values: such a flush never succeeds.
        yield from flush(
            session, times=wanted.flush_times, every_s=wanted.flush_every_s, budget=budget
        )
    body, aim = _body(session, kind, wanted), _aim(session, wanted, before)
    doubt: NoReply | None = None
    unknown: OutcomeUnknown | None = None
    for attempt in range(1, wanted.attempts + 1):
        found = yield from _attempt(session, wanted, body, aim, doubt, budget)
        if isinstance(found, UpdateResult):
            return found
        if isinstance(found, OutcomeUnknown):
            unknown = unknown or found
        lost = found.__cause__ if isinstance(found, OutcomeUnknown) else found
        if isinstance(lost, NoReply) and lost.sent:
            doubt = doubt or lost
        why = reason_of(found, doing=aim.doing)
        pause_s = budget.pause_s(_POLL_S)
        if pause_s is None or attempt == wanted.attempts:
            break
        tell_of_retry(f"{aim.doing}: sent {attempt} times and not done: {why}", budget)
        yield from sleep(pause_s)
    if unknown is not None:
        raise unknown
    given_up = NoAnswer(
        f"{aim.doing}: sent {attempt} times within {budget.seconds:g} s, and not done: {why}; look "
        "at the state of the server, and send the update again"
    )
    if isinstance(found, NoReply) and found.sent:
        # The state was looked at since, and shows that it was not done.
        raise given_up
    return (
        yield from judge_refusal(session, aim, given_up, signed=True, doubt=doubt, budget=budget)
    )


def _aim(session: Session, wanted: UpdateRequest, before: ServerState) -> Aim:
    shown, path = before.weight_version, before.model_path
    renames = (
        wanted.version is not None
        and shown is not None
        and not is_same_label(shown, wanted.version)
    )
    return Aim(
        doing=_doing(session, wanted),
        source=wanted.source,
        before=before,
        is_done=lambda now: _is_done(wanted, before, now),
        leaves_trace=renames or (path is not None and path != wanted.source),
    )


def _attempt(
    session: Session,
    wanted: UpdateRequest,
    body: Mapping[str, object],
    aim: Aim,
    doubt: NoReply | None,
    budget: Budget,
) -> Steps[UpdateResult | Exception]:
    """The result, or why it was not done. What is unknown may be sent again as well."""
    try:
        reply = yield from session.ask_once(_PATH, budget, body=body)
    except NoReply as error:
        if error.final:
            raise session.not_sent(_PATH, error) from error
        if not error.sent:
            return error
        return (yield from _found_out(session, aim, budget, error))
    found = outcome(reply, source=wanted.source, version=wanted.version, doing=aim.doing)
    if isinstance(found, UpdateResult) or is_busy(found):
        return found
    if isinstance(found, OutcomeUnknown):
        told = tells_of_failure(reply)
        return (yield from _found_out(session, aim, budget, found, told=told))
    return (
        yield from judge_refusal(
            session, aim, found, signed=is_signed(reply), doubt=doubt, budget=budget
        )
    )


def _body(session: Session, kind: ServerKind, wanted: UpdateRequest) -> dict[str, object]:
    body: dict[str, object] = {
        "model_path": wanted.source,
        # SGLang's scheduler dies of a flush beside requests that hold keys and values.
        "flush_cache": wanted.flush_cache and not (session.is_frozen and kind is ServerKind.SGLANG),
    }
    if wanted.strategy is not None:
        body["strategy"] = wanted.strategy
    if wanted.version is not None:
        body["weight_version"] = wanted.version
    if wanted.token_step is not None:
        body["token_step"] = wanted.token_step
    if not session.fences:
        body["pause_mode"] = wanted.pause_mode or default_mode(kind)
    return body


def _found_out(
    session: Session, aim: Aim, budget: Budget, cause: Exception, *, told: bool = False
) -> Steps[UpdateResult | Exception]:
    """What became of an update, by the state of the server once it is over.

    ``told`` says that the server itself has told of a failure.
    Raises: UpdateRolledBack, UpdateFailed, OutcomeUnknown.
    """
    now = yield from look_until_over(session, aim, cause, budget=budget)
    if now.weights == "torn":
        raise torn(aim, cause) from cause
    if aim.is_done(now):
        return aim.result(now)
    if isinstance(cause, NoReply):
        if now.weight_epoch is not None:
            return cause
        # SGLang has no count that would tell that it was not done.
        unknown = session.unknown(aim.doing, cause)
        unknown.__cause__ = cause
        return unknown
    if now.weights != "whole":
        raise cause
    if told:
        raise UpdateRolledBack(f"{cause}; the weights are whole, and what they were") from cause
    # Whoever answered need not have been the server, which may be sent it yet.
    raise OutcomeUnknown(
        f"{cause}; the weights are whole, and not those of this update so far"
    ) from cause


def _is_done(wanted: UpdateRequest, before: ServerState, now: ServerState) -> bool:
    if now.weight_epoch is not None and before.weight_epoch is not None:
        later = now.weight_epoch > before.weight_epoch
        named = wanted.version is None or is_same_label(now.weight_version, wanted.version)
        return later and named and now.model_path == wanted.source
    # SGLang counts nothing: only a label that it did not have before tells.
    changed = now.weight_version != before.weight_version
    return (
        wanted.version is not None and changed and is_same_label(now.weight_version, wanted.version)
    )


def is_same_label(shown: str | None, asked: str) -> bool:
    """Whether two labels are one: those that are numbers are compared as numbers."""
    if shown is None:
        return False
    if shown.isascii() and shown.isdecimal() and asked.isascii() and asked.isdecimal():
        # Not as ints: Python makes none of some thousand digits.
        return shown.lstrip("0") == asked.lstrip("0")
    return shown == asked


def outcome(
    reply: Reply, *, source: str, version: str | None, doing: str
) -> UpdateResult | HotswapError:
    """What a reply says that an update from ``source`` did, or what to raise.

    OutcomeUnknown for a success that nobody can read: the update was done, and not as told.
    """
    body = body_of(reply)
    if reply.status != 200 or body.get("success") is not True:
        return update_error(reply, doing=doing)
    try:
        return _result(Fields(body, at=doing, hide=reply.hide), source=source, version=version)
    except ReplyMalformed as error:
        return OutcomeUnknown(str(error))


def _result(told: Fields, *, source: str, version: str | None) -> UpdateResult:
    return UpdateResult(
        source=source,
        weight_version=told.label("weight_version") if "weight_version" in told.body else version,
        weight_epoch=told.count("weight_epoch"),
        tensors=told.count("tensors_loaded"),
        bytes=told.count("bytes"),
        mode=told.text("mode"),
        elements_moved=told.count("elements_moved"),
        staged_ms=told.number("staged_ms"),
        paused_ms=told.number("paused_ms"),
        elapsed_ms=told.number("elapsed_ms"),
        num_aborted_requests=told.count("num_aborted_requests"),
        # SGLang tells one number, or one for each data-parallel rank.
        num_paused_requests=told.counts("num_paused_requests"),
        missing=told.texts("missing"),
        unknown=told.texts("unknown"),
        coverage=push_coverage(told),
        shown=told.body,
    )


def _doing(session: Session, wanted: UpdateRequest) -> str:
    return f"update of {session.url} from {wanted.source}"
