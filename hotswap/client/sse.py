"""Server-sent events, from bytes as they come."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["EventParser", "ServerEvent"]

_MAX_CHARACTERS = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEvent:
    """One event of a server: ``id`` to resume after, its name, and what it tells."""

    id: str | None
    name: str
    tells: Mapping[str, Any] = field(default_factory=dict)


class EventParser:
    """Takes bytes, gives whole events. Comments (heartbeats) are left out."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def __repr__(self) -> str:
        return f"<EventParser {len(self._rest)} characters of an event>"

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """The events that ``piece`` completes. Raises: ValueError for one without an end."""
        text = self._rest + self._decoder.decode(piece)
        # A carriage return may be half of a line's end.
        held = "\r" if text.endswith("\r") else ""
        *blocks, rest = _lines_joined(text.removesuffix("\r")).split("\n\n")
        self._rest = rest + held
        if len(self._rest) > _MAX_CHARACTERS:
            raise ValueError(f"an event has {len(self._rest)} characters and no end")
        events = map(_event, blocks)
        return [event for event in events if event is not None]


def _lines_joined(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _event(block: str) -> ServerEvent | None:
    fields: dict[str, list[str]] = {}
    for line in block.split("\n"):
        name, _, value = line.partition(":")
        fields.setdefault(name, []).append(value.removeprefix(" "))
    if "event" not in fields and "data" not in fields:
        return None
    return ServerEvent(
        id=fields["id"][-1] if "id" in fields else None,
        name=fields.get("event", ["message"])[-1],
        tells=_told("\n".join(fields.get("data", []))),
    )


def _told(text: str) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return {"text": text}
    return told if isinstance(told, dict) else {"value": told}
