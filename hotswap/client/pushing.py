"""The steps of a push, and the payload that they send.

Rule: a push is absolute, the same bytes in the same places, so it may be sent again whenever
nobody knows what became of it.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlencode, urlsplit

from hotswap.client.doubt import Aim, judge_refusal, look_before, reason_of
from hotswap.client.effects import Content, NoReply, Reply, Send, Steps, send, sleep
from hotswap.client.errors import NoAnswer
from hotswap.client.replies import is_signed
from hotswap.client.session import (
    Budget,
    ServerKind,
    Session,
    answered,
    is_busy,
    tell_of_retry,
)
from hotswap.client.shown import ServerState, UpdateResult
from hotswap.client.updating import check_labels, default_mode, is_same_label, outcome
from hotswap.closing import Closing
from hotswap.errors import UpdateRejected

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hotswap.push import SharedTensors
    from hotswap.types import Payload

__all__ = ["PushPayload", "PushRequest", "Tensors", "Transport", "push"]

_log = logging.getLogger("hotswap.client")

_PATH = "/hotswap/v1/push"
_ATTEMPTS = 3
_POLL_S = 0.5
_SCOPES = ("full", "partial")

Value: TypeAlias = "Payload | NDArray[Any]"

Tensors: TypeAlias = "Mapping[str, Value] | Iterable[tuple[str, Value]] | SharedTensors"
"""What a push takes: tensors of torch or arrays of numpy by name, pairs of both, or a
``hotswap.push.SharedTensors``."""


class Transport(StrEnum):
    """``body``: the bytes themselves. ``shared_memory``: the name of memory that both see, on one
    machine. ``auto``: the latter where the server is at a loopback address and sees the memory,
    else the former."""

    AUTO = "auto"
    BODY = "body"
    SHARED_MEMORY = "shared_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRequest:
    """What a push is to do besides bringing tensors. ``scope`` is ``full`` or ``partial``,
    ``update_id`` the session that it belongs to."""

    version: str | None = None
    token_step: int | None = None
    pause_mode: str | None = None
    flush_cache: bool = True
    scope: str = "full"
    update_id: str | None = None
    attempts: int = field(default=_ATTEMPTS)

    def __post_init__(self) -> None:
        """Raises: ValueError, TypeError for what cannot be sent."""
        if self.scope not in _SCOPES:
            raise ValueError(f"scope {self.scope!r:.80}, wanted one of {', '.join(_SCOPES)}")
        check_labels(token_step=self.token_step, version=self.version, update_id=self.update_id)

    def labels(self, *, fenced: bool) -> dict[str, object]:
        """The fields of the request."""
        told: dict[str, object] = {
            "scope": self.scope,
            "flush_cache": self.flush_cache,
            "weight_version": self.version,
            "token_step": self.token_step,
            "update_id": self.update_id,
        }
        if not fenced:
            told["pause_mode"] = self.pause_mode or default_mode(ServerKind.HOTSWAP)
        return {name: value for name, value in told.items() if value is not None}


def _transport(wanted: Transport | str) -> Transport:
    if wanted not in list(Transport):
        raise ValueError(f"transport {wanted!r:.80}, wanted one of {', '.join(Transport)}")
    return Transport(wanted)


def _payload(name: str, value: Any) -> Payload:
    """``value`` as a tensor: of torch, of numpy, or whatever has a spec and can be read."""
    import numpy as np
    import torch

    from hotswap.stream.publisher_tensors import tensor_of

    if isinstance(value, np.ndarray):
        return tensor_of(value)
    if isinstance(value, torch.Tensor) or hasattr(value, "spec"):
        payload: Payload = value
        return payload
    raise TypeError(
        f"tensor {name!r:.200} is a {type(value).__name__}, wanted a torch.Tensor or a numpy array"
    )


class PushPayload(Closing):
    """Tensors as they are sent; holds shared memory until it is closed. Blocking: it copies."""

    def __init__(self, tensors: Tensors, *, transport: Transport | str, url: str) -> None:
        """Raises: ValueError, TypeError for what cannot be sent, OSError when ``/dev/shm`` has no
        room and nothing but shared memory will do."""
        transport = _transport(transport)
        # Only who pushes needs torch.
        from hotswap.push import SafetensorsBody, SharedTensors

        self.shared: SharedTensors | None = None
        self.must_share: bool = transport is Transport.SHARED_MEMORY
        self._owned = False
        if isinstance(tensors, SharedTensors):
            items = list[tuple[str, "Payload"]](tensors.tensors.items())
            self.shared = tensors if transport is not Transport.BODY else None
        else:
            pairs = tensors.items() if isinstance(tensors, Mapping) else tensors
            items = [(name, _payload(name, value)) for name, value in pairs]
            if self.must_share or (transport is Transport.AUTO and _is_here(url)):
                self.shared, self._owned = self._copied(items), True
        if not items:
            raise ValueError("a push without a tensor changes nothing; wanted one at least")
        self.count: int = len(items)
        # What the server calls the update.
        self.source: str = f"a push of {self.count} tensors"
        self.body: SafetensorsBody = SafetensorsBody(items)

    def __repr__(self) -> str:
        return f"<PushPayload {self.count} tensors, {'shared' if self.shared else 'a body'}>"

    def _copied(self, items: list[tuple[str, Payload]]) -> SharedTensors | None:
        from hotswap.push import SharedTensors

        try:
            return SharedTensors.of(items)
        except OSError as error:
            if self.must_share:
                raise
            _log.info("the tensors go as a body: %s", error)
            return None

    def content(self, labels: Mapping[str, object]) -> tuple[str, Content]:
        """Path and body of the request."""
        if self.shared is None:
            query = urlencode({name: _spelled(value) for name, value in labels.items()})
            kind = "application/octet-stream"
            content = Content(pieces=self.body, length=len(self.body), media_type=kind)
            return f"{_PATH}?{query}", content
        import msgspec

        described = {**msgspec.to_builtins(self.shared.description()), **labels}
        text = msgspec.json.encode(described)
        return _PATH, Content(pieces=(text,), length=len(text), media_type="application/json")

    def give_up_sharing(self) -> None:
        """Send the tensors as a body from now on."""
        self._let_go()

    def close(self) -> None:
        """Let go of shared memory that was taken for this. Idempotent."""
        self._let_go()

    def _let_go(self) -> None:
        shared, self.shared = self.shared, None
        if shared is not None and self._owned:
            shared.close()


def push(
    session: Session, payload: PushPayload, wanted: PushRequest, *, budget: Budget
) -> Steps[UpdateResult]:
    """Send it, and again when that may help.

    Raises: UpdateRejected, UpdateRolledBack, UpdateFailed, CommandError, RequestRefused,
    NoAnswer, OutcomeUnknown.
    """
    doing = f"push of {payload.count} tensors to {session.url}"
    kind = yield from session.kind_of_server(budget)
    if kind is ServerKind.SGLANG:
        raise UpdateRejected(
            f"{doing} was not sent: SGLang's servers have no {_PATH}; send a payload of "
            "hotswap.wire to /update_weights_from_tensor"
        )
    before = yield from look_before(session, budget=budget)
    aim = Aim(
        doing=doing,
        source=payload.source,
        before=before,
        is_done=lambda now: _is_done(wanted, before, now),
    )
    doubt: NoReply | None = None
    for attempt in range(1, wanted.attempts + 1):
        reply = yield from _tried(session, payload, wanted, budget=budget)
        if isinstance(reply, NoReply):
            doubt = doubt or (reply if reply.sent else None)
            why = str(reply)
        else:
            found = outcome(reply, source=doing, version=wanted.version, doing=doing)
            if isinstance(found, UpdateResult):
                return found
            if not is_busy(found):
                signed = is_signed(reply)
                return (
                    yield from judge_refusal(
                        session, aim, found, signed=signed, doubt=doubt, budget=budget
                    )
                )
            why = reason_of(found, doing=doing)
        pause_s = budget.pause_s(_POLL_S)
        if pause_s is None or attempt == wanted.attempts:
            break
        tell_of_retry(f"{doing}: {why}", budget)
        yield from sleep(pause_s)
    if doubt is None:
        raise NoAnswer(
            f"{doing}: sent {attempt} times within {budget.seconds:g} s, and not done: {why}; look "
            "at the state of the server, and push again"
        )
    lost = session.unknown(doing, f"{doubt}, sent {attempt} times")
    return (yield from judge_refusal(session, aim, lost, signed=False, doubt=doubt, budget=budget))


def _is_done(wanted: PushRequest, before: ServerState | None, now: ServerState) -> bool:
    """Whether it is live: by its labels, since nobody else's push need have had others."""
    told = wanted.version is not None or wanted.token_step is not None
    if wanted.update_id is not None or not told:
        return False
    was, epoch = None if before is None else before.weight_epoch, now.weight_epoch
    if was is None or epoch is None or epoch <= was:
        return False
    named = wanted.version is None or is_same_label(now.weight_version, wanted.version)
    return named and wanted.token_step in (None, now.token_step)


def _tried(
    session: Session, payload: PushPayload, wanted: PushRequest, *, budget: Budget
) -> Steps[Reply | NoReply]:
    """What came of sending it once. Raises: RequestRefused for what HTTP does not allow."""
    path, content = payload.content(wanted.labels(fenced=bool(session.fences)))
    try:
        reply = yield from _sent(session, path, content, budget)
    except NoReply as error:
        if error.final:
            raise session.not_sent(_PATH, error) from error
        return error
    if _is_unseen(reply) and payload.shared is not None and not payload.must_share:
        # Another container, or another machine behind a tunnel.
        payload.give_up_sharing()
        return (yield from _tried(session, payload, wanted, budget=budget))
    return reply


def _sent(session: Session, path: str, content: Content, budget: Budget) -> Steps[Reply]:
    request = Send(
        method="POST",
        path=path,
        content=content,
        timeout_s=max(budget.left_s, 0.001),
        headers=session.key_headers(admin=True),
    )
    return answered(session.received((yield from send(request)), admin=True))


def _is_unseen(reply: Reply) -> bool:
    return reply.headers.get("x-hotswap-error") == "SegmentNotSeen"


def _is_here(url: str) -> bool:
    """Whether ``url`` is at a loopback address."""
    host = urlsplit(url).hostname or ""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
