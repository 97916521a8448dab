"""What differs between the two dialects that share most of their paths.

Rule: a dialect chooses statuses, envelopes and texts, and what a request means that
leaves it open. Which routes there are, and what they do, is the same in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from starlette.responses import Response

from hotswap.admission import WhilePaused
from hotswap.http.dialect_gr import GrDialect
from hotswap.http.dialect_sglang import SglangDialect
from hotswap.http.errors import Wire
from hotswap.settings import Settings

__all__ = ["Dialect", "dialect_of", "generate_limit_s", "paused_policy"]


class Dialect(Protocol):
    """How one family of clients wants to be spoken to."""

    @property
    def name(self) -> str:
        """As ``--dialect`` has it."""
        ...

    @property
    def while_paused(self) -> WhilePaused:
        """What ``--while-paused auto`` means."""
        ...

    @property
    def boot_version(self) -> str | None:
        """The label of the weights that a server boots with."""
        ...

    @property
    def temperature(self) -> float:
        """Of a request of ``/generate`` or ``/submit`` that has none."""
        ...

    @property
    def aborts_by_prefix(self) -> bool:
        """What ``/abort_request`` takes an id for that comes without ``prefix``."""
        ...

    @property
    def generate_timeout_s(self) -> float:
        """How long a client waits for a reply before it is a 504; 0 for ever."""
        ...

    def own_meta(
        self, rid: str, reply: Mapping[str, object], *, score: float | None
    ) -> dict[str, object]:
        """What ``meta_info`` of a whole ``reply`` of ``/generate`` has besides.

        ``score`` is the log-probability of its tokens together, None if nobody asked.
        """
        ...

    def health(self, body: Mapping[str, object], *, status: int) -> Response:
        """The reply of ``/health``, which says ``body`` where somebody reads it."""
        ...

    def wire(self, error: Exception) -> Wire:
        """Status and code of ``error``."""
        ...

    def error_body(
        self, error: Exception, *, wire: Wire, reports_success: bool
    ) -> dict[str, object]:
        """The envelope; with ``reports_success`` also what trainers look for at the top."""
        ...

    def stream_error(self, error: Exception) -> dict[str, object]:
        """The last event of a stream that failed after its status had been sent."""
        ...

    def weight_pieces(self, tensor: torch.Tensor) -> Iterator[bytes]:
        """The body of ``/get_weights_by_name``, in pieces."""
        ...

    def updated(self, *, source: str, version: str | None) -> str:
        """The message of an update from ``source``; ``version`` None when none was sent."""
        ...

    def pushed(self, *, version: str | None) -> str:
        """The message of a push; ``version`` None when none was sent."""
        ...

    def flushed(self, entries: int) -> Response:
        """The reply of a flush that dropped ``entries``."""
        ...

    def memory_moved(self, body: Mapping[str, object]) -> Response:
        """The reply once memory was released or taken again, which ``body`` tells of."""
        ...

    def flush_refused(self, error: Exception) -> Response:
        """The reply of a flush that is not possible now: always a 400."""
        ...


def dialect_of(settings: Settings) -> Dialect:
    """The dialect that a server was told to speak."""
    return SglangDialect() if settings.dialect == "sglang" else GrDialect()


def generate_limit_s(settings: Settings) -> float:
    """How long a client may wait for a reply, 0 for ever; a setting that says so wins."""
    if settings.generate_timeout_s is None:
        return dialect_of(settings).generate_timeout_s
    return settings.generate_timeout_s


def paused_policy(settings: Settings) -> WhilePaused:
    """What a generation request meets during a pause; a setting that says so wins."""
    if settings.while_paused == "auto":
        return dialect_of(settings).while_paused
    return WhilePaused(settings.while_paused)
