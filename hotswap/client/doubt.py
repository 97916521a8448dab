"""What a refusal says of the weights when it need not be the whole story.

Rules:

* A refusal that the server signs speaks of that one request: what was sent before it, and not
  answered, may have been done all the same.
* One that nobody signed may be of something on the way, which may have passed the request on.
* Both are judged by the state of the server. Who cannot look does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hotswap.client.commands import state
from hotswap.client.effects import NoReply, Steps, sleep
from hotswap.client.errors import NoAnswer, OutcomeUnknown
from hotswap.client.session import Budget, ServerKind, Session
from hotswap.client.shown import ServerState, UpdateResult
from hotswap.errors import HotswapError, UpdateFailed

__all__ = ["Aim", "judge_refusal", "look_before", "look_until_over", "reason_of", "torn"]

_POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What a call wants to change, and what shows that it has.

    ``before`` is the server as it was, None where it did not show itself. ``source`` is what the
    server calls the update while it runs, None when any may be it. ``may_begin_late``: it may wait
    on the server for a while in which nothing shows. ``leaves_trace``: once it is done, a server
    without an epoch looks otherwise than before.
    """

    doing: str
    source: str | None
    before: ServerState | None
    is_done: Callable[[ServerState], bool]
    may_begin_late: bool = False
    leaves_trace: bool = False

    def result(self, now: ServerState) -> UpdateResult:
        """What is known of an update that only the state of the server told of."""
        return UpdateResult(
            source=self.source or self.doing,
            weight_version=now.weight_version,
            weight_epoch=now.weight_epoch,
            confirmed_by="state",
        )

    def is_running(self, now: ServerState) -> bool:
        """Whether the server is at it."""
        return any(self.source in (None, running.source) for running in now.updates)


def reason_of(error: Exception, *, doing: str) -> str:
    """What ``error`` says, without the ``doing`` that it may begin with already."""
    return str(error).removeprefix(f"{doing}: ")


def look_before(session: Session, *, budget: Budget) -> Steps[ServerState | None]:
    """The server as it is, None where it does not show itself. Raises: NoAnswer."""
    try:
        return (yield from state(session, budget=budget))
    except NoAnswer:
        raise
    except HotswapError:
        # Whoever may push need not be allowed to look.
        return None


def look_until_over(
    session: Session, aim: Aim, cause: Exception, *, said: str | None = None, budget: Budget
) -> Steps[ServerState]:
    """The server once it is not at it any more.

    Raises: OutcomeUnknown of ``cause``, which says it, or what is ``said`` of it.
    """
    told = cause if said is None else said
    while True:
        try:
            now = yield from state(session, budget=budget)
        except HotswapError as error:
            raise session.unknown(aim.doing, f"{told}; then {error}") from cause
        if not aim.is_running(now):
            return now
        pause_s = budget.pause_s(_POLL_S)
        if pause_s is None:
            raise session.unknown(aim.doing, f"{told}; it still runs") from cause
        yield from sleep(pause_s)


def judge_refusal(
    session: Session,
    aim: Aim,
    refusal: HotswapError,
    *,
    signed: bool,
    doubt: NoReply | None,
    budget: Budget,
) -> Steps[UpdateResult]:
    """The result, where the server shows that it was done in spite of ``refusal``.

    ``signed``: the server itself says so. ``doubt`` is why an attempt before it may have been
    done. Raises: ``refusal`` where nothing has changed; UpdateFailed for weights that are not
    whole; OutcomeUnknown where nobody can say.
    """
    is_word = signed and doubt is None and not isinstance(refusal, OutcomeUnknown)
    if is_word or isinstance(refusal, UpdateFailed):
        raise refusal
    said = reason_of(refusal, doing=aim.doing)
    if doubt is not None and not isinstance(refusal, OutcomeUnknown):
        said = f"{said}; it was sent before that and may have been done then ({doubt})"
    now = yield from look_until_over(session, aim, refusal, said=said, budget=budget)
    if now.weights == "torn":
        raise torn(aim, said) from refusal
    if aim.before is not None and aim.is_done(now):
        return aim.result(now)
    if isinstance(refusal, OutcomeUnknown) or _is_as_before(aim, now, doubted=doubt is not None):
        raise refusal
    raise session.unknown(aim.doing, said) from refusal


def torn(aim: Aim, said: object) -> UpdateFailed:
    """The error for a server that generates nothing after what was ``said``."""
    return UpdateFailed(
        f"{aim.doing}: {said}; the weights of the server are torn and it generates nothing: "
        "send a full update"
    )


def _is_as_before(aim: Aim, now: ServerState, *, doubted: bool) -> bool:
    """Whether the state shows that nothing has changed the weights."""
    before = aim.before
    if before is None or (doubted and aim.may_begin_late):
        return False
    if now.server is ServerKind.SGLANG:
        # It tells nothing of what runs: what was cut off may come yet.
        same = (now.weight_version, now.model_path) == (before.weight_version, before.model_path)
        return same and aim.leaves_trace and not doubted
    counted = before.weight_epoch is not None and now.weight_epoch == before.weight_epoch
    return counted and now.weights == before.weights
