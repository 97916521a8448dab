"""``/v1/completions``: prompts as they are."""

from __future__ import annotations

from hotswap.http.openai.bodies import CompletionBody
from hotswap.http.openai.choices import Choice, News, Prompt
from hotswap.http.openai.generating import Asked, Generating, Kitchen, Names
from hotswap.http.openai.logprobs import CompletionScores, TokenNames
from hotswap.http.runs import encoded
from hotswap.seams import LogprobsWanted

__all__ = ["completions"]


async def _prepare(body: CompletionBody, kitchen: Kitchen) -> Asked:
    """Raises: RequestInvalid."""
    prompts = [await _prompt(item, kitchen, echo=body.echo) for item in body.prompts()]
    sampling = body.sampling(body.max_tokens)
    wanted = None
    if body.logprobs is not None:
        wanted = LogprobsWanted(input_start=0 if body.echo else None, top=body.logprobs)
    return Asked(
        prompts=prompts,
        samplings=[sampling] * len(prompts),
        logprobs=wanted,
        form=_Form(
            TokenNames(kitchen.decode), echo=body.echo, has_logprobs=body.logprobs is not None
        ),
    )


async def _prompt(item: str | list[int], kitchen: Kitchen, *, echo: bool) -> Prompt:
    if isinstance(item, str):
        encode, encoders = kitchen.engine.encode, kitchen.serving.encoders
        ids = await encoded(encode, item, encoders=encoders)
        return Prompt(input_ids=ids, text=item if echo else "")
    decode = kitchen.decode
    return Prompt(input_ids=item, text=decode(item) if echo and decode is not None else "")


class _Form:
    """Choices with a ``text``."""

    def __init__(self, names: TokenNames, *, echo: bool, has_logprobs: bool) -> None:
        self._names = names
        self._echo = echo
        self._has_logprobs = has_logprobs
        self._scores: dict[int, CompletionScores] = {}

    def whole(self, choice: Choice) -> dict[str, object]:
        scored = [*choice.input_logprobs, *choice.logprobs]
        return {
            "text": choice.prompt.text + choice.text,
            "logprobs": self._of(choice).add(scored) if self._has_logprobs else None,
        }

    def opening(self, choice: Choice) -> dict[str, object] | None:
        return {"text": choice.prompt.text, "logprobs": None} if self._echo else None

    def piece(self, choice: Choice, news: News) -> dict[str, object]:
        logprobs = self._of(choice).add(news.logprobs) if news.logprobs else None
        return {"text": news.text, "logprobs": logprobs}

    def _of(self, choice: Choice) -> CompletionScores:
        return self._scores.setdefault(choice.index, CompletionScores(self._names))


completions: Generating[CompletionBody] = Generating(
    CompletionBody,
    names=Names(prefix="cmpl", whole="text_completion", part="text_completion"),
    count=lambda body: len(body.prompts()),
    prepare=_prepare,
)
"""The endpoint."""
