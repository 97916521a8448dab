"""What a server shows of itself, as values; what a server does not tell is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hotswap.client.fields import Fields
from hotswap.client.session import ServerKind
from hotswap.counted import counted

__all__ = [
    "OpenSession",
    "PushCoverage",
    "ServerState",
    "UpdateInProgress",
    "UpdateResult",
    "push_coverage",
    "server_state",
    "sglang_state",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateInProgress:
    """An update that is not over; ``phase`` is ``waiting``, ``staging``, ``queued`` or
    ``committing``.

    Tensors and bytes that the server holds in host memory, or has written (*direct*), and
    that the source has; None until the server knows.
    """

    source: str
    version: str | None
    phase: str
    since_ms: float | None = None
    tensors_done: int | None = None
    tensors_total: int | None = None
    bytes_done: int | None = None
    bytes_total: int | None = None

    def __str__(self) -> str:
        held = ""
        if self.bytes_total is not None:
            held = f" {(self.bytes_done or 0) / 1e6:.1f} of {self.bytes_total / 1e6:.1f} MB"
        return f"{self.phase}{held}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PushCoverage:
    """How far a push by parts has come that has not covered all: ``covered`` weights of ``of``
    are new, the others are those of before. ``version`` is that of its parts, if they have one.
    """

    covered: int
    of: int
    version: str | None = None

    def __str__(self) -> str:
        named = "new" if self.version is None else f"of version {self.version}"
        left = self.of - self.covered
        return f"{self.covered} of {self.of} tensors are {named}, {left} still those of before"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """An update session that is open: nothing else changes the weights until it has ended."""

    update_id: str
    chunks: int
    tensors: int | None = None
    bytes: int | None = None
    scope: str | None = None
    idle_ms: float | None = None

    def __str__(self) -> str:
        idle = "" if self.idle_ms is None else f", idle for {self.idle_ms / 1000:.1f} s"
        held = f"{counted(self.tensors or 0, 'tensor')}, {(self.bytes or 0) / 1e6:.1f} MB"
        return f"{self.update_id}: {counted(self.chunks, 'chunk')}, {held}{idle}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """One look at a server.

    ``state`` is a name of the state table, ``weights`` says whether they are whole,
    ``gate`` is the mode of a client's pause, None while it is open. SGLang's own servers
    tell ``weight_version``, ``model_path``, ``running`` and ``waiting`` only. ``follow`` is how
    far a server is with the stream that it follows, None for one that follows none. ``coverage``
    is None unless a push by parts lacks some, ``session`` unless one is open.
    ``shown`` is the reply as it came.
    """

    server: ServerKind
    ready: bool
    state: str | None = None
    reasons: tuple[str, ...] = ()
    gate: str | None = None
    weights: str | None = None
    weight_version: str | None = None
    weight_epoch: int | None = None
    weight_update_count: int | None = None
    token_step: int | None = None
    last_update_ms: float | None = None
    model_path: str | None = None
    running: int | None = None
    waiting: int | None = None
    updates: tuple[UpdateInProgress, ...] = ()
    server_version: str | None = None
    follow: Mapping[str, Any] | None = None
    coverage: PushCoverage | None = None
    session: OpenSession | None = None
    shown: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """What one successful update did and cost, in milliseconds and bytes.

    ``mode`` is ``sparse`` where only the ``elements_moved`` were written, else ``full``.
    ``confirmed_by`` is ``reply``, or ``state`` where the reply was lost and the server's
    state showed that the update was done: costs are then not known. ``coverage`` is how far a push
    of a part has brought all of them, None once that is all.
    """

    source: str
    weight_version: str | None
    confirmed_by: str = "reply"
    weight_epoch: int | None = None
    tensors: int | None = None
    bytes: int | None = None
    mode: str | None = None
    elements_moved: int | None = None
    staged_ms: float | None = None
    paused_ms: float | None = None
    elapsed_ms: float | None = None
    num_aborted_requests: int | None = None
    num_paused_requests: int | None = None
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    coverage: PushCoverage | None = None
    shown: Mapping[str, Any] = field(default_factory=dict, repr=False)


def server_state(told: Fields) -> ServerState:
    """From hotswap's ``/status``. Raises: ReplyMalformed."""
    facts, weights = told.part("facts"), told.part("weights")
    in_flight = told.part("in_flight")
    return ServerState(
        server=ServerKind.HOTSWAP,
        ready=told.flag("ready") or False,
        state=told.text("state"),
        reasons=told.texts("reasons"),
        gate=facts.text("gate"),
        weights=facts.text("weights"),
        weight_version=weights.label("weight_version"),
        weight_epoch=weights.count("weight_epoch"),
        weight_update_count=weights.count("weight_update_count"),
        token_step=weights.count("token_step"),
        last_update_ms=weights.number("last_weight_update_ms"),
        model_path=told.text("model_path"),
        running=in_flight.count("running"),
        waiting=in_flight.count("waiting"),
        updates=tuple(map(_in_progress, told.parts("updates"))),
        server_version=told.label("version"),
        follow=told.part("follow").body or None,
        coverage=push_coverage(weights),
        session=_open_session(told.part("session")),
        shown=told.body,
    )


def sglang_state(told: Fields, loads: Fields, *, ready: bool) -> ServerState:
    """From ``/model_info`` and ``/v1/loads``, summed over data-parallel ranks.

    Raises: ReplyMalformed.
    """
    rows = loads.parts("loads")
    return ServerState(
        server=ServerKind.SGLANG,
        ready=ready,
        reasons=() if ready else ("unhealthy",),
        weight_version=told.label("weight_version"),
        model_path=told.text("model_path"),
        running=sum(row.count("num_running_reqs") or 0 for row in rows) if rows else None,
        waiting=sum(row.count("num_waiting_reqs") or 0 for row in rows) if rows else None,
        shown={**told.body, "loads": [row.body for row in rows]},
    )


def push_coverage(told: Fields) -> PushCoverage | None:
    """From the ``coverage`` of a reply. Raises: ReplyMalformed."""
    part = told.part("coverage")
    covered, of = part.count("covered"), part.count("of")
    if covered is None or of is None:
        return None
    return PushCoverage(covered=covered, of=of, version=part.label("version"))


def _open_session(told: Fields) -> OpenSession | None:
    update_id = told.label("update_id")
    if update_id is None:
        return None
    return OpenSession(
        update_id=update_id,
        chunks=told.count("updates") or 0,
        tensors=told.count("tensors"),
        bytes=told.count("bytes"),
        scope=told.text("scope"),
        idle_ms=told.number("idle_ms"),
    )


def _in_progress(shown: Fields) -> UpdateInProgress:
    return UpdateInProgress(
        source=shown.text("source") or "",
        version=shown.label("version"),
        phase=shown.text("phase") or "",
        since_ms=shown.number("since_ms"),
        tensors_done=shown.count("tensors_done"),
        tensors_total=shown.count("tensors_total"),
        bytes_done=shown.count("bytes_done"),
        bytes_total=shown.count("bytes_total"),
    )
