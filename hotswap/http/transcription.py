"""One request behind the door, read to its last chunk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from hotswap.http.dialect import Dialect
from hotswap.http.errors import GenerationFailed
from hotswap.http.in_flight import Ticket
from hotswap.http.transcript import Transcript
from hotswap.seams import Generation

__all__ = ["EngineFailed", "Transcription", "check_end"]


class EngineFailed(Exception):
    """The engine ended a request with an error of its own."""


def check_end(rid: str, transcript: Transcript) -> None:
    """Raises: GenerationFailed or EngineFailed when this is not how a request should end."""
    if transcript.error is not None:
        raise GenerationFailed(f"request {rid} ended: {transcript.error}")
    if transcript.finish in (None, "error"):
        raise EngineFailed(f"request {rid} ended with {transcript.finish}")


class Transcription:
    """Takes the chunks of ``generation`` into ``transcript``, and notes its end."""

    def __init__(self, ticket: Ticket, generation: Generation, transcript: Transcript) -> None:
        self._generation = generation
        self.ticket = ticket
        self.transcript = transcript

    def __repr__(self) -> str:
        return f"<Transcription {self.ticket.rid} {self.ticket.state}>"

    def whole(self, dialect: Dialect) -> dict[str, object]:
        """The body of a reply, with what ``dialect`` has in its ``meta_info`` besides."""
        reply = self.transcript.reply()
        own = dialect.own_meta(self.ticket.rid, reply, score=self.transcript.score)
        cast(dict[str, object], reply["meta_info"]).update(own)
        return reply

    async def read(
        self, after_each: Callable[[], Awaitable[None]] | None = None, *, showing: bool = False
    ) -> None:
        """Take every chunk, and call ``after_each`` once the transcript has it.

        ``showing`` says that the text is looked at before the end.
        Raises: as ``check_end``.
        """
        ticket, transcript = self.ticket, self.transcript
        async for chunk in self._generation:
            ticket.ended = chunk.finish_reason is not None
            transcript.abort_message = ticket.abort_message
            transcript.add(chunk, stream=showing or after_each is not None)
            if after_each is not None and chunk.finish_reason != "error":
                await after_each()
        check_end(ticket.rid, transcript)
