"""``/v1/chat/completions``: messages, through the chat template of the model."""

from __future__ import annotations

from functools import partial

from hotswap.http.errors import RequestInvalid
from hotswap.http.openai.bodies import ChatBody
from hotswap.http.openai.chat_template import TemplateFailed
from hotswap.http.openai.choices import Choice, News, Prompt
from hotswap.http.openai.generating import Asked, Generating, Kitchen, Names
from hotswap.http.openai.logprobs import ChatScores, TokenNames
from hotswap.http.openai.messages import template_messages, template_values
from hotswap.http.runs import encoded
from hotswap.http.served import Describing
from hotswap.seams import LogprobsWanted

__all__ = ["chat_completions"]

# For an engine that does not say how long its context is.
_USUAL_TOKENS = 4096


async def _prepare(body: ChatBody, kitchen: Kitchen) -> Asked:
    """Raises: RequestInvalid."""
    text = await _rendered(body, kitchen)
    # The template has put every special token there already.
    encode = partial(kitchen.engine.encode, add_special_tokens=False)
    ids = await encoded(encode, text, encoders=kitchen.serving.encoders)
    wanted = LogprobsWanted(top=body.top_logprobs) if body.logprobs else None
    return Asked(
        prompts=[Prompt(input_ids=ids)],
        samplings=[body.sampling(body.most_tokens or _room(kitchen, len(ids)))],
        logprobs=wanted,
        form=_Form(ChatScores(TokenNames(kitchen.decode)), has_logprobs=body.logprobs),
    )


async def _rendered(body: ChatBody, kitchen: Kitchen) -> str:
    render = partial(
        kitchen.at_start.template.render,
        template_messages(body.messages),
        tools=body.tools or None,
        add_generation_prompt=body.add_generation_prompt,
        values=template_values(body.chat_template_kwargs),
    )
    try:
        return await kitchen.at_start.renderers.run(render)
    except TemplateFailed as error:
        raise RequestInvalid(f"chat template: {error}") from error


def _room(kitchen: Kitchen, prompt_tokens: int) -> int:
    """As many tokens as the context holds behind the prompt; the engine refuses a full one."""
    engine = kitchen.engine
    context = engine.describe().get("max_context") if isinstance(engine, Describing) else None
    return max(context - prompt_tokens, 1) if isinstance(context, int) else _USUAL_TOKENS


class _Form:
    """Choices with a ``message``, or a ``delta``."""

    def __init__(self, scores: ChatScores, *, has_logprobs: bool) -> None:
        self._scores = scores
        self._has_logprobs = has_logprobs

    def whole(self, choice: Choice) -> dict[str, object]:
        return {
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": self._scores.add(choice.logprobs) if self._has_logprobs else None,
        }

    def opening(self, choice: Choice) -> dict[str, object] | None:
        return {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def piece(self, choice: Choice, news: News) -> dict[str, object]:
        return {
            "delta": {"content": news.text} if news.text else {},
            "logprobs": self._scores.add(news.logprobs) if news.logprobs else None,
        }


chat_completions: Generating[ChatBody] = Generating(
    ChatBody,
    names=Names(prefix="chatcmpl", whole="chat.completion", part="chat.completion.chunk"),
    count=lambda _body: 1,
    prepare=_prepare,
)
"""The endpoint."""
