"""Bodies of the OpenAI routes. What would change the reply and is not done is refused by name."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from hotswap.http.openai.errors import ParameterRefused
from hotswap.http.schemas import SamplingBody
from hotswap.seams import SamplingParams

__all__ = ["MAX_CHOICES", "ChatBody", "CompletionBody", "GeneratingBody", "StreamOptions"]

MAX_CHOICES = 256
"""Prompts of one request times ``n``."""

_MAX_TOP = 20

Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``include_usage``: one more event, with the usage and no choice, before the end."""

    include_usage: bool = False


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """``type`` text is the only one there is."""

    type: str = "text"


class GeneratingBody(msgspec.Struct, frozen=True, kw_only=True):
    """What both routes take. From ``top_k`` on it is not OpenAI's own, but its servers' habit."""

    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] = 1
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    temperature: Annotated[float, Meta(ge=0)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    seed: int | None = None
    stop: str | list[str] = ""
    logit_bias: dict[str, float] = {}
    response_format: ResponseFormat = ResponseFormat()
    top_k: Annotated[int, Meta(ge=-1)] = -1
    min_p: Share = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] = 1.0
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    rid: Annotated[str, Meta(min_length=1, max_length=256)] | None = None

    def refuse_what_is_not_done(self) -> None:
        """Raises: ParameterRefused for a field that would change the reply."""
        if self.logit_bias:
            raise ParameterRefused("logit_bias", "logit_bias is not supported; leave it out")
        if self.response_format.type != "text":
            raise ParameterRefused(
                "response_format",
                f"response_format is {self.response_format.type}, and only text is supported",
            )

    def sampling(self, max_new_tokens: int) -> SamplingParams:
        """As the engine takes them. Raises: RequestInvalid."""
        return SamplingBody(
            max_new_tokens=max_new_tokens,
            min_new_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
        ).params()


class CompletionBody(GeneratingBody, frozen=True, kw_only=True):
    """``/v1/completions``."""

    prompt: str | list[str | int | list[int]]
    max_tokens: Annotated[int, Meta(ge=0)] = 16
    echo: bool = False
    logprobs: Annotated[int, Meta(ge=0, le=_MAX_TOP)] | None = None
    best_of: int | None = None
    suffix: str = ""

    def prompts(self) -> list[str | list[int]]:
        """Each prompt, a text or token ids. Raises: ParameterRefused."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        texts = [item for item in given if isinstance(item, str)]
        tokens = [item for item in given if isinstance(item, int)]
        lists = [item for item in given if isinstance(item, list)]
        if not given or not all(lists):
            raise ParameterRefused("prompt", "prompt has an empty list, wanted text or token ids")
        if len(given) not in (len(texts), len(tokens), len(lists)):
            raise ParameterRefused(
                "prompt", "prompt mixes texts, token ids and lists, wanted a list of one kind"
            )
        return [tokens] if tokens else [*texts, *lists]

    def refuse_what_is_not_done(self) -> None:
        """Raises: ParameterRefused."""
        GeneratingBody.refuse_what_is_not_done(self)
        if self.best_of not in (None, self.n):
            raise ParameterRefused(
                "best_of",
                f"best_of is {self.best_of} and n is {self.n}: choosing among more samples than "
                "are shown is not supported; leave best_of out",
            )
        if self.suffix:
            raise ParameterRefused("suffix", "suffix is not supported; leave it out")
        if self.max_tokens == 0 and not self.echo:
            raise ParameterRefused(
                "max_tokens", "max_tokens is 0, wanted 1 or more; 0 goes with echo only"
            )


class ChatBody(GeneratingBody, frozen=True, kw_only=True):
    """``/v1/chat/completions``. A template comes with the model, never with a request."""

    messages: list[dict[str, object]]
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=_MAX_TOP)] = 0
    tools: list[dict[str, object]] | None = None
    tool_choice: str | dict[str, object] = "auto"
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, object] = {}
    functions: list[object] = []
    modalities: list[str] = []

    @property
    def most_tokens(self) -> int | None:
        """How long the reply may get, under the new name or the old one."""
        return self.max_completion_tokens or self.max_tokens

    def refuse_what_is_not_done(self) -> None:
        """Raises: ParameterRefused."""
        GeneratingBody.refuse_what_is_not_done(self)
        if not self.messages:
            raise ParameterRefused("messages", "messages is empty, wanted at least one message")
        if self.chat_template is not None:
            raise ParameterRefused(
                "chat_template", "a template of a request is never run; leave chat_template out"
            )
        if self.tool_choice not in ("auto", "none"):
            raise ParameterRefused(
                "tool_choice", "tool_choice cannot be forced, wanted 'auto' or 'none'"
            )
        if self.top_logprobs and not self.logprobs:
            raise ParameterRefused("top_logprobs", "top_logprobs needs logprobs to be true")
        self._refuse_by_name()

    def _refuse_by_name(self) -> None:
        present = {
            "continue_final_message": self.continue_final_message,
            "functions": bool(self.functions),
            "modalities": set(self.modalities) - {"text"},
        }
        for name, is_asked_for in present.items():
            if is_asked_for:
                raise ParameterRefused(name, f"{name} is not supported; leave it out")
