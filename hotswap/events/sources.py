"""What the controller and the puller tell their observers, as events."""

from __future__ import annotations

from dataclasses import asdict

from hotswap.attempt import Phase, UpdateNews
from hotswap.events.log import EventLog
from hotswap.follow import FollowStatus
from hotswap.foreign import reason_of, words_of
from hotswap.pulls import PullNews
from hotswap.state import Change, Command, Outcome, Weights

__all__ = ["publish_change", "publish_follow", "publish_pull", "publish_update"]

_NOT_WHOLE = (Weights.TORN, Weights.NEVER_LOADED)


def publish_change(log: EventLog, change: Change) -> None:
    """``state`` for every change, and a second event for what people wait for."""
    old, new = change.states
    before, after = change.before, change.after
    log.publish(
        "state",
        {
            "old": old,
            "new": new,
            "command": change.command,
            "outcome": change.outcome,
            "gate": after.gate or "open",
            "weights": after.weights,
            "kv": after.kv,
        },
    )
    if after.gate is not before.gate:
        if after.gate is None:
            log.publish("resume", {"state": new})
        else:
            log.publish("pause", {"mode": after.gate, "state": new})
    if change.command is Command.FLUSH and change.outcome is Outcome.DONE:
        log.publish("flush", {"state": new})
    if after.weights in _NOT_WHOLE and before.weights not in _NOT_WHOLE:
        log.publish("invalid", {"weights": after.weights, "command": change.command})


def publish_pull(log: EventLog, news: PullNews) -> None:
    """``pull`` for every step: received, how far it is, and how it ended with the costs."""
    log.publish("pull", news.fields())


def publish_follow(log: EventLog, status: FollowStatus) -> None:
    """``follow`` whenever a follower's state, versions or trouble has changed."""
    log.publish("follow", status.fields())


def publish_update(log: EventLog, news: UpdateNews) -> None:
    """``update`` for every step; the last one has the outcome as its phase, and the costs."""
    update = news.update
    phase = "received" if news.phase is Phase.WAITING else str(news.phase)
    log.publish(
        "update",
        {
            "update": news.number,
            "phase": news.outcome or phase,
            "strategy": update.strategy,
            "source": words_of(update.source),
            "version": update.version,
            "mode": update.mode,
            **_result(news),
        },
    )


def _result(news: UpdateNews) -> dict[str, object]:
    report = news.report
    if report is not None:
        return {
            "weight_epoch": report.stamp.epoch,
            "weight_version": report.stamp.version,
            "tensors": report.tensors_applied,
            "bytes": report.bytes_applied,
            "commit_mode": report.commit_mode,
            "elements_moved": report.elements_moved,
            "num_aborted_requests": report.num_aborted_requests,
            "num_paused_requests": report.num_paused_requests,
            "staged_ms": report.staged_ms,
            "paused_ms": report.paused_ms,
            "elapsed_ms": report.elapsed_ms,
        }
    if news.error is not None:
        return {"reason": reason_of(news.error)}
    return {} if news.progress is None else asdict(news.progress)
