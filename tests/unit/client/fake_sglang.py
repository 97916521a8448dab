"""An SGLang server as its protocol describes it, behind httpx's own mock transport."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx

__all__ = ["FakeSglang"]


class FakeSglang:
    """Pauses, flushes, updates and continues; keeps a log of what it was asked.

    ``refuse_flushes`` flushes are refused first. ``meets`` may answer a path itself.
    """

    def __init__(self, *, refuse_flushes: int = 0) -> None:
        self.calls: list[str] = []
        self.bodies: list[dict[str, object]] = []
        self.paused = False
        self.version = "default"
        self.model_path = "/a"
        self.meets: dict[str, Callable[[httpx.Request], httpx.Response]] = {}
        self._refuse_flushes = refuse_flushes

    def __repr__(self) -> str:
        return f"<FakeSglang {self.version} paused={self.paused}>"

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.calls.append(path)
        if path in self.meets:
            return self.meets[path](request)
        route = getattr(self, "_" + path.strip("/").replace("/", "_"), None)
        if route is None:
            return httpx.Response(404, json={"detail": "Not Found"})
        answered: httpx.Response = route(json.loads(request.content or b"{}"))
        return answered

    def _pause_generation(self, body: dict[str, object]) -> httpx.Response:
        self.paused = True
        self.bodies.append(body)
        return httpx.Response(
            200, json={"message": "Generation paused successfully.", "status": "ok"}
        )

    def _continue_generation(self, body: dict[str, object]) -> httpx.Response:
        self.paused = False
        return httpx.Response(
            200, json={"message": "Generation continued successfully.", "status": "ok"}
        )

    def _flush_cache(self, body: dict[str, object]) -> httpx.Response:
        if self._refuse_flushes:
            self._refuse_flushes -= 1
            return httpx.Response(400, text="Flush cache failed.\n")
        return httpx.Response(200, text="Cache flushed.\n")

    def _update_weights_from_disk(self, body: dict[str, object]) -> httpx.Response:
        self.bodies.append(body)
        assert self.paused, "an update beside running requests"
        self.version, self.model_path = str(body["weight_version"]), str(body["model_path"])
        message = f"Succeeded to update model weights. Weight version updated to {self.version}."
        return httpx.Response(
            200, json={"success": True, "message": message, "num_paused_requests": 0}
        )

    def _model_info(self, body: dict[str, object]) -> httpx.Response:
        return httpx.Response(
            200, json={"model_path": self.model_path, "weight_version": self.version}
        )

    def _health(self, body: dict[str, object]) -> httpx.Response:
        return httpx.Response(200)

    def _ping(self, body: dict[str, object]) -> httpx.Response:
        return httpx.Response(200)
