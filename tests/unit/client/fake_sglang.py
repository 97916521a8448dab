"""An SGLang server as its protocol describes it, behind httpx's own mock transport.

What it has no route for gets Starlette's own 404, hotswap's routes among it. Bodies are
judged as pydantic does, and what is wrong gets SGLang's ``ErrorResponse``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import httpx

__all__ = ["FakeSglang"]

FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. (When there are running or "
    "waiting requests, the operation will not be performed.)\n"
)

METHODS: Mapping[str, tuple[str, ...]] = {
    "/pause_generation": ("POST",),
    "/continue_generation": ("POST",),
    "/flush_cache": ("GET", "POST"),
    "/update_weights_from_disk": ("POST",),
    "/get_weight_version": ("GET",),
    "/model_info": ("GET",),
    "/health": ("GET",),
    "/ping": ("GET",),
    "/v1/loads": ("GET",),
}

# Types of the fields of an update, as far as the client knows them.
UPDATE_FIELDS: Mapping[str, tuple[type, ...]] = {
    "model_path": (str,),
    "load_format": (str, type(None)),
    "abort_all_requests": (bool,),
    "weight_version": (str, type(None)),
    "flush_cache": (bool,),
    "token_step": (int,),
}


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
        if path not in METHODS:
            return httpx.Response(404, json={"detail": "Not Found"})
        if request.method not in METHODS[path]:
            return httpx.Response(405, json={"detail": "Method Not Allowed"})
        route: Callable[[dict[str, object]], httpx.Response] = getattr(
            self, "_" + path.strip("/").replace("/", "_")
        )
        if request.content and request.headers["content-type"] != "application/json":
            return _invalid("Input should be a valid dictionary or object")
        return route(json.loads(request.content or b"{}"))

    def _pause_generation(self, body: dict[str, object]) -> httpx.Response:
        if body.get("mode", "abort") not in ("abort", "retract", "in_place"):
            return _invalid("Input should be 'abort', 'retract' or 'in_place'")
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
        return httpx.Response(200, text=FLUSHED)

    def _update_weights_from_disk(self, body: dict[str, object]) -> httpx.Response:
        self.bodies.append(body)
        assert self.paused, "an update beside running requests"
        if "model_path" not in body:
            return _invalid("Field required")
        for name, value in body.items():
            # Fields that it does not know are ignored.
            if name in UPDATE_FIELDS and not isinstance(value, UPDATE_FIELDS[name]):
                return _invalid(f"{name}: Input should be {UPDATE_FIELDS[name]}")
        message = "Succeeded to update model weights."
        if body.get("weight_version") is not None:
            self.version = str(body["weight_version"])
            message += f" Weight version updated to {self.version}."
        self.model_path = str(body["model_path"])
        return httpx.Response(
            200, json={"success": True, "message": message, "num_paused_requests": 0}
        )

    def _get_weight_version(self, body: dict[str, object]) -> httpx.Response:
        text = "Endpoint '/get_weight_version' or '/weight_version' is deprecated."
        error = {"object": "error", "message": text, "type": "404", "param": None, "code": 404}
        return httpx.Response(404, json=error)

    def _model_info(self, body: dict[str, object]) -> httpx.Response:
        return httpx.Response(
            200,
            json={
                "model_path": self.model_path,
                "tokenizer_path": self.model_path,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": self.version,
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": "llama",
                "architectures": ["LlamaForCausalLM"],
            },
        )

    def _v1_loads(self, body: dict[str, object]) -> httpx.Response:
        rows = [
            {"dp_rank": rank, "num_running_reqs": 1, "num_waiting_reqs": 2, "num_total_tokens": 3}
            for rank in range(2)
        ]
        return httpx.Response(200, json={"timestamp": "now", "version": "0.5", "loads": rows})

    def _health(self, body: dict[str, object]) -> httpx.Response:
        return httpx.Response(200)

    def _ping(self, body: dict[str, object]) -> httpx.Response:
        return httpx.Response(200)


def _invalid(message: str) -> httpx.Response:
    """What SGLang makes of a validation error."""
    error = {"object": "error", "message": message, "type": "Bad Request", "param": None}
    return httpx.Response(400, json={**error, "code": 400})
