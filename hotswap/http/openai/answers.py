"""A reply of an OpenAI route, whole or as server-sent events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from hotswap.http.errors import ClientGone
from hotswap.http.event_stream import EventStream
from hotswap.http.failures import log_failure
from hotswap.http.openai.choices import Choice, News, summary, usage
from hotswap.http.openai.errors import openai_body
from hotswap.http.patience import Patience
from hotswap.http.replies import encode
from hotswap.http.runs import run_together

__all__ = ["Answer", "Form"]


class Form(Protocol):
    """What differs between completions and chats."""

    def whole(self, choice: Choice) -> dict[str, object]:
        """A choice that has ended, without its index, finish reason and metadata."""
        ...

    def opening(self, choice: Choice) -> dict[str, object] | None:
        """What its stream begins with, before the first token; None for nothing."""
        ...

    def piece(self, choice: Choice, news: News) -> dict[str, object]:
        """What its stream goes on with."""
        ...


class Answer:
    """The reply of one request. ``head`` is what every object of it begins with.

    ``samples`` of the choices belong to each prompt.
    """

    def __init__(
        self, choices: Sequence[Choice], form: Form, *, head: Mapping[str, object], samples: int
    ) -> None:
        self._choices = choices
        self._form = form
        self._head = head
        self._samples = samples

    def __repr__(self) -> str:
        return f"<Answer of {len(self._choices)} choices>"

    async def whole(self) -> dict[str, object]:
        """The body, once every choice has ended. Raises: as ``check_end``."""
        # At the same time: an engine may bound how much of a reply waits unread.
        await run_together([choice.read for choice in self._choices])
        return {
            **self._head,
            "choices": [
                {
                    "index": choice.index,
                    **self._form.whole(choice),
                    "finish_reason": choice.transcript.finish,
                    "metadata": choice.metadata,
                }
                for choice in self._choices
            ],
            "usage": self._usage(),
            "metadata": summary(self._choices),
        }

    async def stream(self, events: EventStream, *, with_usage: bool, patience_s: float) -> None:
        """Events as they come, an error as one of them, and the end.

        A choice of which nothing comes for ``patience_s`` (0: for ever) is such an error.
        Raises: ClientGone when nobody reads them.
        """
        await events.begin()
        try:
            await run_together(
                [
                    partial(
                        self._read, choice, events, with_usage=with_usage, patience_s=patience_s
                    )
                    for choice in self._choices
                ]
            )
            if with_usage:
                last = {"choices": [], "usage": self._usage(), "metadata": summary(self._choices)}
                await events.payload(encode({**self._head, **last}))
        except ClientGone:
            raise
        except Exception as error:
            # The status has been sent: the stream itself has to tell of the error.
            log_failure(f"stream {self._head['id']}", error)
            await events.payload(encode(openai_body(error)))
        await events.payload(b"[DONE]")
        await events.end()

    def _usage(self) -> dict[str, object]:
        return usage(self._choices, samples=self._samples)

    async def _read(
        self, choice: Choice, events: EventStream, *, with_usage: bool, patience_s: float
    ) -> None:
        patience = Patience(patience_s)
        empty_usage = {"usage": None} if with_usage else {}

        async def event(piece: Mapping[str, object], finish: str | None) -> None:
            shown = {"index": choice.index, **piece, "finish_reason": finish}
            body = {**self._head, "choices": [shown], "metadata": choice.metadata, **empty_usage}
            await events.payload(encode(body))

        async def tell(news: News) -> None:
            # A token that is a part of a character has nothing to show yet.
            if news.text or news.logprobs or news.is_end:
                await event(self._form.piece(choice, news), choice.transcript.finish)
            patience.renew()

        opening = self._form.opening(choice)
        if opening is not None:
            await event(opening, None)
        await patience.run(partial(choice.read, tell))
