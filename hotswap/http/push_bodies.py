"""Bodies of requests that push weights, alone or in a session."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from hotswap.http.errors import RequestInvalid
from hotswap.http.schemas import MAX_LABEL_CHARACTERS, label, swap_mode
from hotswap.update_session import Labels

__all__ = [
    "Labelled",
    "SessionAbortBody",
    "SessionBeginBody",
    "SessionCommitBody",
    "SessionBody",
    "StreamVersion",
    "TensorUpdateBody",
    "UpdateId",
]

UpdateId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
"""What a client calls a session, or has been told that it is called."""

StreamVersion: TypeAlias = Annotated[int, Meta(ge=0, le=10**18 - 1)]
"""The number of a published version; 0 is the checkpoint that the server was started with."""

_Label: TypeAlias = Annotated[str, Meta(max_length=MAX_LABEL_CHARACTERS)] | int | None


class Labelled(msgspec.Struct, frozen=True, kw_only=True):
    """What every push, and every commit, may say about its update."""

    weight_version: _Label = None
    token_step: int | None = None
    flush_cache: bool = True
    abort_all_requests: bool = False
    pause_mode: str | None = None

    def labels(self) -> Labels:
        """What the request says about its update. Raises: RequestInvalid."""
        return Labels(
            version=label(self.weight_version),
            token_step=self.token_step,
            flush_cache=self.flush_cache,
            pause_mode=swap_mode(self.pause_mode, abort=self.abort_all_requests),
        )


class TensorUpdateBody(Labelled, frozen=True, kw_only=True):
    """``/update_weights_from_tensor``: a payload for each rank, in their order or by the UUIDs of
    their devices. ``update_id`` is the session that it belongs to; without one it is an update
    of its own, of a part of the weights or (``scope`` full) of all of them.

    Two fields of SGLang have no effect: there is no draft model, and no cache of the allocator.
    """

    serialized_named_tensors: list[str] | dict[str, str]
    load_format: str | None = None
    scope: Literal["partial", "full"] = "partial"
    update_id: UpdateId | None = None
    selector: Literal["all", "target"] = "all"
    disable_draft_model: bool | None = None
    torch_empty_cache: bool = False


class SessionBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/begin_weight_update``. There is no draft model to select."""

    selector: Literal["all", "target"] = "all"
    scope: Literal["partial", "full"] = "partial"


class SessionBeginBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/hotswap/v1/begin``: an id of the client's own, or None for a new one."""

    update_id: UpdateId | None = None
    scope: Literal["partial", "full"] = "full"


class SessionCommitBody(Labelled, frozen=True, kw_only=True):
    """``/hotswap/v1/commit``: of the session ``update_id``, else of what a server that follows a
    stream has pulled: ``version``, or whatever it is. ``wait_s``: how long the version may still
    take to be pulled."""

    update_id: UpdateId | None = None
    version: StreamVersion | None = None
    wait_s: Annotated[float, Meta(ge=0, le=86400)] = 0.0

    def check(self) -> None:
        """Raises: RequestInvalid for what is about a session and a version."""
        if self.update_id is not None and (self.version is not None or self.wait_s):
            raise RequestInvalid(
                "update_id is that of a session, which has no version and needs no wait_s; send "
                "one or the other"
            )


class SessionAbortBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/hotswap/v1/abort``: None for whichever session is open."""

    update_id: UpdateId | None = None
