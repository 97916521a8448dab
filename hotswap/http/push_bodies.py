"""Bodies of requests that push weights, alone or in a session."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from hotswap.http.schemas import MAX_LABEL_CHARACTERS, label, swap_mode
from hotswap.update_session import Labels

__all__ = [
    "Labelled",
    "SessionAbortBody",
    "SessionBeginBody",
    "SessionCommitBody",
    "SessionBody",
    "TensorUpdateBody",
    "UpdateId",
]

UpdateId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
"""What a client calls a session, or has been told that it is called."""

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
    """``/hotswap/v1/commit``."""

    update_id: UpdateId


class SessionAbortBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/hotswap/v1/abort``: None for whichever session is open."""

    update_id: UpdateId | None = None
