"""A server behind something that answers in its place, and what it shows of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hotswap.client.effects import Effect, NoReply, Reply, Send
from hotswap.client.session import ServerKind
from tests.unit.client.script import Script, reply, status

__all__ = ["World"]


class World(Script):
    """A server behind something that answers in its own way.

    The ``answers`` are those of the way to each attempt; the update is done at the
    ``done_at``th of them, as ``becomes``. After ``seen`` attempts it shows itself no longer.
    """

    def __init__(
        self,
        *answers: Reply | NoReply,
        kind: ServerKind = ServerKind.HOTSWAP,
        done_at: int = 0,
        seen: int = 99,
        version: str = "6",
        becomes: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(*answers, kind=kind)
        self.done_at = done_at
        self.seen = seen
        self.attempts = 0
        self.state: dict[str, Any] = {"epoch": 3, "version": version, "model_path": "a"}
        self.becomes = {"epoch": 4, "version": "7", "model_path": "b", **(becomes or {})}

    def _perform(self, effect: Effect) -> object:
        if not isinstance(effect, Send):
            return super()._perform(effect)
        if effect.method == "GET":
            return self._look(effect.path)
        self.attempts += 1
        if self.attempts == self.done_at:
            self.state = self.becomes
        return super()._perform(effect)

    def _look(self, path: str) -> Reply:
        if self.attempts >= self.seen:
            return reply(401, {"error": "no key of the way"})
        if path != "/status":
            told = {"model_path": self.state["model_path"], "weight_version": self.state["version"]}
            return reply(200, told)
        shown = json.loads(status(**self.state).body)
        live = int(self.state["version"])
        return reply(200, shown | {"follow": {"live_version": live, "pulled_version": 7}})
