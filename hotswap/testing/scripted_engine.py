"""An engine without a model: tests say which tokens come, and when.

Token ids are UTF-8 bytes, so that a character may span tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import torch

from hotswap.errors import UpdateRejected
from hotswap.seams import (
    EnginePause,
    GenerateRequest,
    Generation,
    Plan,
    TokenChunk,
    TokenLogprob,
)
from hotswap.types import (
    Bucket,
    InFlightCounts,
    Manifest,
    PauseMode,
    Scope,
    TensorSpec,
    WeightStamp,
    member,
)

__all__ = ["ScriptedEngine", "ScriptedGeneration"]

_NO_UPDATE = "a ScriptedEngine takes no update; use FakeEngine"


class ScriptedGeneration:
    """One request: ``emit`` tokens, then ``finish``; ``aborted`` says who asked for the end."""

    def __init__(self, request: GenerateRequest, stamp: WeightStamp) -> None:
        self.request = request
        self.stamp = stamp
        self.aborted: asyncio.Event = asyncio.Event()
        self.ended: bool = False
        self._chunks: asyncio.Queue[TokenChunk] = asyncio.Queue()

    def __repr__(self) -> str:
        return f"<ScriptedGeneration {self.request.rid}>"

    def emit(self, tokens: bytes, *, stamp: WeightStamp | None = None) -> None:
        """Deliver each byte as one token."""
        for token in tokens:
            self._chunks.put_nowait(TokenChunk(token_id=token, stamp=stamp or self.stamp))

    def emit_scored(self, score: TokenLogprob, *, inputs: tuple[TokenLogprob, ...] = ()) -> None:
        """Deliver one token with how likely it was, and how likely those of the prompt were."""
        self._chunks.put_nowait(
            TokenChunk(
                token_id=score.token_id, stamp=self.stamp, logprob=score, input_logprobs=inputs
            )
        )

    def finish(
        self,
        reason: str,
        *,
        matched: int | str | None = None,
        cached: int = 0,
        error: str | None = None,
    ) -> None:
        """Deliver the last chunk, without a token."""
        self._chunks.put_nowait(
            TokenChunk(
                token_id=None,
                stamp=self.stamp,
                finish_reason=reason,
                matched_stop=matched,
                cached_tokens=cached,
                error=error,
            )
        )

    async def __aiter__(self) -> AsyncIterator[TokenChunk]:
        while not self.ended:
            chunk = await self._chunks.get()
            self.ended = chunk.finish_reason is not None
            yield chunk

    def abort(self) -> None:
        """As the protocol says."""
        if not self.aborted.is_set():
            self.aborted.set()
            self.finish("abort")


class ScriptedEngine:
    """Satisfies Engine, Generator and Inspector.

    ``reply`` is what every request is answered with at once; None leaves the
    generation to the test, which finds it in ``generations`` by the client's id (what
    stands before the last ``#``). As with a real engine, an id is taken until its last
    chunk was read.
    """

    def __init__(self, *, reply: bytes | None = b"ok", tokenizer: bool = True) -> None:
        self.reply = reply
        self.tokenizer = tokenizer
        self.alive = True
        self.stamp: WeightStamp = WeightStamp()
        self.generations: dict[str, ScriptedGeneration] = {}
        self._all: list[ScriptedGeneration] = []
        self.submitted: asyncio.Event = asyncio.Event()
        self.tensors: dict[str, torch.Tensor] = {"embed.weight": torch.arange(6.0).reshape(3, 2)}

    def __repr__(self) -> str:
        return f"<ScriptedEngine {len(self.generations)} submitted>"

    @property
    def in_flight(self) -> InFlightCounts:
        """Requests that have not delivered their last chunk."""
        running = sum(not generation.ended for generation in self._all)
        return InFlightCounts(running=running, holding_kv=running)

    def describe(self) -> Mapping[str, object]:
        """Two fields of ``/model_info``."""
        return {"model_type": "scripted", "vocab_size": 256}

    def manifest(self) -> Manifest:
        """The tensors."""
        return Manifest.of(
            TensorSpec(name=name, dtype=tensor.dtype, shape=tuple(tensor.shape))
            for name, tensor in self.tensors.items()
        )

    def plan(self, manifest: Manifest, scope: Scope) -> Plan:
        """Not scripted. Raises: UpdateRejected."""
        raise UpdateRejected(_NO_UPDATE)

    async def pause(self, mode: PauseMode) -> EnginePause:
        """Stop at once; ``abort`` ends every request."""
        mode = member(PauseMode, mode, what="pause mode")
        live = [item for item in self.generations.values() if not item.ended]
        if mode is PauseMode.ABORT:
            for generation in live:
                generation.abort()
        return EnginePause(num_aborted=len(live) if mode is PauseMode.ABORT else 0, since=0.0)

    async def resume(self) -> None:
        """Nothing to do."""

    async def flush(self) -> int:
        """There is no cache."""
        return 0

    async def write(self, plan: Plan, bucket: Bucket) -> None:
        """Not scripted. Raises: UpdateRejected."""
        raise UpdateRejected(_NO_UPDATE)

    async def commit(self, stamp: WeightStamp) -> None:
        """Not scripted. Raises: UpdateRejected."""
        raise UpdateRejected(_NO_UPDATE)

    def submit(self, request: GenerateRequest) -> Generation:
        """Take a request. Raises: ValueError for a token that is no byte, an id in use."""
        if any(not 0 <= token < 256 for token in request.input_ids):
            raise ValueError("input_ids has a token outside 0 to 255")
        if any(live.request.rid == request.rid and not live.ended for live in self._all):
            raise ValueError(f"rid {request.rid!r} is in flight already")
        generation = ScriptedGeneration(request, self.stamp)
        self._all.append(generation)
        self.generations[request.rid.rpartition("#")[0] or request.rid] = generation
        if self.reply is not None:
            generation.emit(self.reply)
            generation.finish("length")
        self.submitted.set()
        return generation

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """UTF-8. Raises: ValueError without a tokenizer."""
        self._need_tokenizer()
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """UTF-8, incomplete characters as U+FFFD; 0 is a special token, shown as ``<0>``.

        Raises: ValueError without a tokenizer.
        """
        self._need_tokenizer()
        special = b"" if skip_special_tokens else b"<0>"
        return bytes(token_ids).replace(b"\0", special).decode(errors="replace")

    async def read_weight(self, name: str, rows: int) -> torch.Tensor:
        """First rows. Raises: KeyError."""
        tensor = self.tensors[name]
        return (tensor[:rows] if tensor.ndim else tensor).clone()

    async def checksums(self) -> dict[str, str]:
        """Sixteen hexadecimal digits a tensor, of its values."""
        return {name: f"{int(t.sum()):016x}" for name, t in self.tensors.items()}

    async def reset_weights(self, skipped: Sequence[str]) -> tuple[str, ...]:
        """Every value becomes 7."""
        for tensor in self.tensors.values():
            tensor.fill_(7.0)
        return tuple(self.tensors)

    def _need_tokenizer(self) -> None:
        if not self.tokenizer:
            raise ValueError("this checkpoint has no tokenizer.json; send input_ids")
