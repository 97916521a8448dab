"""Which of a request's payloads is for this process, and its bytes.

Rules: a payload that is labelled goes by its label and never by its place; a wrong
number of payloads is refused before any of them is looked into.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping, Sequence

from hotswap.wire.budget import DEFAULT_LIMITS
from hotswap.wire.refused import PayloadRefused, shown

__all__ = ["chosen", "payload_bytes", "same_device"]


def chosen(
    payloads: Sequence[str] | Mapping[str, str],
    *,
    rank: int = 0,
    world_size: int = 1,
    device_uuid: str | None = None,
) -> str:
    """The payload of ``rank``: by the UUID of its device where the payloads have such
    labels, else by its place among exactly ``world_size``. Raises: PayloadRefused.
    """
    if len(payloads) != world_size:
        raise PayloadRefused(
            f"the request has {len(payloads)} payloads and this server {world_size} ranks; "
            "send one for each"
        )
    if not isinstance(payloads, Mapping):
        return payloads[rank]
    mine = [text for label, text in payloads.items() if same_device(label, device_uuid)]
    if len(mine) != 1:
        labels = ", ".join(shown(label) for label in list(payloads)[:8])
        raise PayloadRefused(
            f"the payloads are labelled {labels}, and rank {rank} runs on "
            f"{device_uuid or 'no device that has a UUID'}; label one of them with that"
        )
    return mine[0]


def same_device(label: str, device_uuid: str | None) -> bool:
    """Whether ``label`` names the device, with ``GPU-`` in front or without, in any case."""
    return device_uuid is not None and _bare(label) == _bare(device_uuid)


def _bare(uuid: str) -> str:
    return uuid.strip().lower().removeprefix("gpu-")


def payload_bytes(text: str, *, limit_bytes: int = DEFAULT_LIMITS.payload_bytes) -> bytes:
    """The payload that ``text`` is the base64 of; that of one encoded twice by mistake too.

    Raises: PayloadRefused, before anything is decoded where it is too long.
    """
    raw = _decoded(text, limit_bytes=limit_bytes)
    if raw[:1] == b"\x80" or not raw.isascii():
        return raw
    try:
        inner = binascii.a2b_base64(raw, strict_mode=True)
    except binascii.Error:
        return raw
    return inner if inner[:1] == b"\x80" else raw


def _decoded(text: str, *, limit_bytes: int) -> bytes:
    if len(text) // 4 * 3 > limit_bytes + 2:
        raise PayloadRefused(
            f"a payload has {len(text)} characters of base64, wanted at most "
            f"{(limit_bytes + 2) // 3 * 4}; send fewer tensors at once"
        )
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise PayloadRefused(
            f"a payload is no base64 ({error}); it begins with {shown(text[:24])}; send what "
            "a trainer's serializer makes of the tensors, encoded once"
        ) from error
