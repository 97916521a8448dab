"""The steps of a commit: what a server that follows a stream has pulled becomes live."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hotswap.client.effects import Steps
from hotswap.client.session import Budget, ServerKind, Session
from hotswap.client.shown import UpdateResult
from hotswap.client.updating import check_labels, default_mode, outcome
from hotswap.errors import UpdateRejected

__all__ = ["CommitRequest", "commit"]

_PATH = "/hotswap/v1/commit"


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
    reply = yield from session.ask(_PATH, budget, body=_body(session, wanted))
    found = outcome(reply, source=_PATH, version=wanted.label, doing=doing)
    if isinstance(found, UpdateResult):
        return found
    raise found


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
