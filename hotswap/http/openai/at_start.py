"""What the OpenAI routes know since the app was made."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from starlette.requests import Request

from hotswap.http.openai.chat_template import ChatTemplate, load_chat_template
from hotswap.http.openai.template_pool import RENDERERS
from hotswap.http.openai.turns import Turns
from hotswap.settings import Settings

__all__ = ["AtStart", "at_start", "known_at_start"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AtStart:
    """``created`` is in seconds of Unix time. The template was read at the start, as the
    tokenizer was: neither follows the directories that weights come from."""

    template: ChatTemplate
    created: int = field(default_factory=lambda: int(time.time()))
    renderers: Turns = field(default_factory=lambda: Turns(RENDERERS))


def known_at_start(settings: Settings) -> AtStart:
    """Read the template. Never raises: without one only chats are refused."""
    return AtStart(template=load_chat_template(settings.model))


def at_start(request: Request) -> AtStart:
    """The :class:`AtStart` of the app that ``request`` came to."""
    found: AtStart = request.app.state.openai
    return found
