"""The HTTP calls that the demo makes, as any trainer or load generator would."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

import anyio
import httpx

from contrib.demo.failed import DemoFailed

__all__ = ["Client"]

READY_S = 60.0
FLUSH_S = 30.0

# No read limit on a stream: a request that is held through a pause is silent meanwhile.
_TIMEOUT = httpx.Timeout(120.0, pool=None)
_LIMITS = httpx.Limits(max_connections=None)


class Client:
    """One server, by its base URL. Every refusal is a DemoFailed with the server's message."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.AsyncClient(
            base_url=url, timeout=_TIMEOUT, limits=_LIMITS, trust_env=False
        )

    def __repr__(self) -> str:
        return f"<Client {self.url}>"

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def wait_until_ready(self) -> None:
        """Return once ``/ready`` says 200. Raises: DemoFailed."""
        await self._until_200("/ready", READY_S)

    async def state(self) -> dict[str, Any]:
        """``/status``: state, live version, requests in flight."""
        return await self._call("GET", "/status")

    async def checksums(self) -> dict[str, str]:
        """xxh3 of every live parameter and buffer, by name."""
        reply = await self._call("POST", "/weights_checker", {"action": "checksum"})
        return dict(reply["ranks"][0]["checksums"])

    async def generate(self, text: str, *, max_new_tokens: int) -> dict[str, Any]:
        """One greedy reply, whole: ``text``, ``output_ids``, ``meta_info``."""
        sampling = {"max_new_tokens": max_new_tokens, "temperature": 0.0}
        return await self._call("POST", "/generate", {"text": text, "sampling_params": sampling})

    async def stream(self, text: str, sampling: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The events of one streamed reply, each with everything so far."""
        body = {"text": text, "sampling_params": sampling, "stream": True}
        async with self._http.stream("POST", "/generate", json=body) as reply:
            if reply.status_code != 200:
                await reply.aread()
                raise _refused("/generate", reply)
            async for line in reply.aiter_lines():
                if line.startswith("data:") and not line.endswith("[DONE]"):
                    yield json.loads(line.removeprefix("data:"))

    async def pause(self, mode: str) -> dict[str, Any]:
        """Stop forward passes; ``retract`` parks the requests in flight."""
        return await self._call("POST", "/pause_generation", {"mode": mode})

    async def resume(self) -> dict[str, Any]:
        """Let forward passes run."""
        return await self._call("POST", "/continue_generation", {})

    async def flush(self) -> None:
        """Drop cached prefixes; asks again until the server says yes, as trainers do."""
        await self._until_200("/flush_cache", FLUSH_S)

    async def update(self, directory: str, *, version: str, **fields: Any) -> dict[str, Any]:
        """Replace the weights with those of a checkpoint directory."""
        body = {"model_path": directory, "weight_version": version, **fields}
        return await self._call("POST", "/update_weights_from_disk", body)

    async def _until_200(self, path: str, limit_s: float) -> None:
        with anyio.move_on_after(limit_s):
            while True:
                if (await self._http.get(path)).status_code == 200:
                    return
                await anyio.sleep(0.05)
        raise DemoFailed(f"{self.url}{path} was not 200 within {limit_s:g} s")

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        try:
            reply = await self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            raise DemoFailed(f"{method} {self.url}{path}: {error!r}") from error
        if reply.status_code != 200:
            raise _refused(path, reply)
        return dict(reply.json())


def _refused(path: str, reply: httpx.Response) -> DemoFailed:
    try:
        message = reply.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = reply.text[:200]
    return DemoFailed(f"{path} answered {reply.status_code}: {message}")
