"""The steps of a commit: what a server that follows a stream has pulled becomes live."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hotswap.client.doubt import Aim, judge_refusal, look_before
from hotswap.client.effects import NoReply, Steps, sleep
from hotswap.client.errors import NoAnswer
from hotswap.client.replies import is_signed
from hotswap.client.session import Budget, ServerKind, Session, is_busy, tell_of_retry
from hotswap.client.shown import ServerState, UpdateResult
from hotswap.client.updating import check_labels, default_mode, is_same_label, outcome
from hotswap.errors import UpdateRejected

__all__ = ["CommitRequest", "commit"]

_PATH = "/hotswap/v1/commit"
_POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """Which version to commit, None for whatever is pulled, and what to call it.

    ``wait_s`` is how long the server may take to pull it first.
    Raises: ValueError, TypeError for what cannot be sent.
    """

    version: int | None = None
    wait_s: float = 0.0
    label: str | None = None
    token_step: int | None = None
    pause_mode: str | None = None
    flush_cache: bool = True

    def __post_init__(self) -> None:
        check_labels(token_step=self.token_step, label=self.label)
        version: object = self.version
        if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
            raise TypeError(f"version is {version!r:.80}, wanted the number of a version")
        if not 0 <= self.wait_s < math.inf:
            raise ValueError(f"wait_s is {self.wait_s:g}, wanted 0 seconds or more, and an end")


def commit(session: Session, wanted: CommitRequest, *, budget: Budget) -> Steps[UpdateResult]:
    """Commit it; done twice it is done once, so that it is sent again until it is answered.

    Raises: UpdateRejected (NotPulled and SourceNotReady among it), UpdateRolledBack,
    UpdateFailed, CommandError, RequestRefused, NoAnswer, OutcomeUnknown.
    """
    what = "what is pulled" if wanted.version is None else f"version {wanted.version}"
    doing = f"commit of {what} at {session.url}"
    kind = yield from session.kind_of_server(budget)
    if kind is ServerKind.SGLANG:
        raise UpdateRejected(f"{doing} was not sent: SGLang's servers follow no stream; update it")
    before = yield from look_before(session, budget=budget)
    aim = Aim(
        doing=doing,
        source=None,
        before=before,
        is_done=lambda now: _is_done(wanted, before, now),
        # It may be waiting for the version on the server, and then nothing shows.
        may_begin_late=wanted.wait_s > 0,
    )
    body, doubt = _body(session, wanted), None
    while True:
        try:
            reply = yield from session.ask_once(_PATH, budget, body=body)
        except NoReply as error:
            doubt = doubt or (error if error.sent else None)
            yield from _wait(session, aim, error, doubt, budget)
            continue
        found = outcome(reply, source=_PATH, version=wanted.label, doing=doing)
        if isinstance(found, UpdateResult):
            return found
        pause_s = budget.pause_s(_POLL_S)
        if pause_s is None or not is_busy(found):
            signed = is_signed(reply)
            return (
                yield from judge_refusal(
                    session, aim, found, signed=signed, doubt=doubt, budget=budget
                )
            )
        tell_of_retry(found, budget)
        yield from sleep(pause_s)


def _wait(
    session: Session, aim: Aim, error: NoReply, doubt: NoReply | None, budget: Budget
) -> Steps[None]:
    """Until it may be sent again. Raises: NoAnswer, RequestRefused; OutcomeUnknown where one
    that was sent may have been done."""
    try:
        yield from session.wait_or_give_up(_PATH, budget, error)
    except NoAnswer as given_up:
        if doubt is None:
            raise
        raise session.unknown(aim.doing, f"{doubt}; then {given_up}") from given_up


def _is_done(wanted: CommitRequest, before: ServerState | None, now: ServerState) -> bool:
    """Whether the stream's version is live that was not before, under the label that was asked
    for."""
    was = {} if before is None or before.follow is None else before.follow
    live = None if now.follow is None else now.follow.get("live_version")
    if live is None or live == was.get("live_version"):
        return False
    named = wanted.label is None or is_same_label(now.weight_version, wanted.label)
    # Without a number it was what was pulled, which may have become more since.
    meant = was.get("pulled_version") if wanted.version is None else wanted.version
    return named and live == meant


def _body(session: Session, wanted: CommitRequest) -> dict[str, object]:
    body: dict[str, object] = {"flush_cache": wanted.flush_cache, "wait_s": wanted.wait_s}
    told = {
        "version": wanted.version,
        "weight_version": wanted.label,
        "token_step": wanted.token_step,
    }
    body |= {name: value for name, value in told.items() if value is not None}
    if not session.fences:
        body["pause_mode"] = wanted.pause_mode or default_mode(ServerKind.HOTSWAP)
    return body
