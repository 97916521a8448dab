"""A server that answers by path, however often it is asked, on the clock of a ``Script``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hotswap.client.effects import Effect, NoReply, Reply, Send
from hotswap.client.session import ServerKind
from tests.unit.client.script import Script, reply, status

__all__ = ["TRUTHS", "Answers", "Scene"]

Answers = Reply | NoReply | Callable[[], Reply | NoReply]

UPDATED: Mapping[str, Any] = {
    "success": True,
    "message": "done",
    "weight_version": "7",
    "weight_epoch": 1,
    "tensors_loaded": 3,
    "bytes": 9,
    "mode": "sparse",
    "elements_moved": 2,
    "staged_ms": 1.5,
    "paused_ms": 0.5,
    "elapsed_ms": 3,
    "num_aborted_requests": 0,
    "num_paused_requests": [1, 2],
    "missing": ["a"],
    "unknown": ["b"],
}
RUNS: Mapping[str, Any] = {
    "source": "elsewhere",
    "version": "8",
    "phase": "staging",
    "since_ms": 1.5,
    "tensors_done": 1,
    "tensors_total": 2,
    "bytes_done": 3,
    "bytes_total": 4,
}

TRUTHS: Mapping[str, Reply] = {
    "/status": status(updates=[dict(RUNS)]),
    "/ready": reply(503, {"ready": False, "reasons": ["paused"]}),
    "/pause_generation": reply(200, {"message": "paused", "status": "ok"}),
    "/continue_generation": reply(200, {"message": "continued", "status": "ok"}),
    "/flush_cache": reply(200, {"success": True, "entries_cleared": 4}),
    "/update_weights_from_disk": reply(200, dict(UPDATED)),
    "/hotswap/v1/push": reply(200, dict(UPDATED)),
    "/model_info": reply(200, {"model_path": "/m", "weight_version": "6"}),
    "/v1/loads": reply(200, {"loads": [{"num_running_reqs": 1, "num_waiting_reqs": 2}]}),
    "/ping": reply(200),
    "/health": reply(200),
}
"""What a server that keeps its word answers to everything that a client asks."""


class Scene(Script):
    """Tells the truth but where ``lies`` has an answer of its own."""

    def __init__(
        self, lies: Mapping[str, Answers] | None = None, *, kind: ServerKind = ServerKind.HOTSWAP
    ) -> None:
        super().__init__(kind=kind)
        self.lies = dict(lies or {})

    def _perform(self, effect: Effect) -> object:
        if not isinstance(effect, Send):
            return super()._perform(effect)
        path = effect.path.partition("?")[0]
        self.asked.append((path, None if effect.body is None else {**effect.body}))
        found = self.lies.get(path, TRUTHS[path])
        answer = found() if callable(found) else found
        if isinstance(answer, NoReply):
            raise answer
        return answer
