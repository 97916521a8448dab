"""What a server shows of itself, as values; what a server does not tell is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hotswap.client.session import ServerKind

__all__ = ["ServerState", "UpdateInProgress", "UpdateResult", "server_state", "sglang_state"]


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
class ServerState:
    """One look at a server.

    ``state`` is a name of the state table, ``weights`` says whether they are whole,
    ``gate`` is the mode of a client's pause, None while it is open. SGLang's own servers
    tell ``weight_version``, ``model_path``, ``running`` and ``waiting`` only.
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
    shown: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """What one successful update did and cost, in milliseconds and bytes.

    ``mode`` is ``sparse`` where only the ``elements_moved`` were written, else ``full``.
    ``confirmed_by`` is ``reply``, or ``state`` where the reply was lost and the server's
    state showed that the update was done: costs are then not known.
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
    shown: Mapping[str, Any] = field(default_factory=dict, repr=False)


def server_state(body: Mapping[str, Any]) -> ServerState:
    """From hotswap's ``/status``."""
    facts, weights = _part(body, "facts"), _part(body, "weights")
    in_flight = _part(body, "in_flight")
    gate = facts.get("gate")
    return ServerState(
        server=ServerKind.HOTSWAP,
        ready=bool(body.get("ready")),
        state=body.get("state"),
        reasons=tuple(map(str, body.get("reasons", ()))),
        gate=None if gate is None else str(gate),
        weights=facts.get("weights"),
        weight_version=weights.get("weight_version"),
        weight_epoch=weights.get("weight_epoch"),
        weight_update_count=weights.get("weight_update_count"),
        token_step=weights.get("token_step"),
        last_update_ms=weights.get("last_weight_update_ms"),
        model_path=body.get("model_path"),
        running=in_flight.get("running"),
        waiting=in_flight.get("waiting"),
        updates=tuple(map(_in_progress, body.get("updates", ()))),
        server_version=body.get("version"),
        shown=body,
    )


def sglang_state(info: Mapping[str, Any], loads: Mapping[str, Any], *, ready: bool) -> ServerState:
    """From ``/model_info`` and ``/v1/loads``, summed over data-parallel ranks."""
    rows = [row for row in loads.get("loads", ()) if isinstance(row, Mapping)]
    version = info.get("weight_version")
    return ServerState(
        server=ServerKind.SGLANG,
        ready=ready,
        reasons=() if ready else ("unhealthy",),
        weight_version=None if version is None else str(version),
        model_path=info.get("model_path"),
        running=sum(row.get("num_running_reqs") or 0 for row in rows) if rows else None,
        waiting=sum(row.get("num_waiting_reqs") or 0 for row in rows) if rows else None,
        shown={**info, "loads": rows},
    )


def _in_progress(shown: Mapping[str, Any]) -> UpdateInProgress:
    return UpdateInProgress(
        source=str(shown.get("source", "")),
        version=shown.get("version"),
        phase=str(shown.get("phase", "")),
        since_ms=shown.get("since_ms"),
        tensors_done=shown.get("tensors_done"),
        tensors_total=shown.get("tensors_total"),
        bytes_done=shown.get("bytes_done"),
        bytes_total=shown.get("bytes_total"),
    )


def _part(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = body.get(name)
    return found if isinstance(found, Mapping) else {}
