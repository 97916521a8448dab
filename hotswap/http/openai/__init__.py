"""The routes that OpenAI's clients call: models, completions, chats."""

from __future__ import annotations

from hotswap.http.openai.at_start import known_at_start
from hotswap.http.openai.chat import chat_completions
from hotswap.http.openai.completions import completions
from hotswap.http.openai.errors import OpenAiEnvelope, openai_reply
from hotswap.http.openai.models import list_models, retrieve_model
from hotswap.http.routes import Kind, KindedRoute

__all__ = ["OpenAiEnvelope", "known_at_start", "openai_reply", "openai_routes"]


_WHOLE_OR_STREAM = {200: ("application/json", "text/event-stream")}


def openai_routes() -> list[KindedRoute]:
    """Every one of them; their errors are in OpenAI's envelope."""
    return [
        KindedRoute("/v1/models", list_models, kind=Kind.OPEN, methods=["GET"]),
        KindedRoute("/v1/models/{model:path}", retrieve_model, kind=Kind.OPEN, methods=["GET"]),
        KindedRoute(
            "/v1/completions",
            completions,
            kind=Kind.GENERATE,
            methods=["POST"],
            body=completions.body,
            answers=_WHOLE_OR_STREAM,
            errors=(504,),
        ),
        KindedRoute(
            "/v1/chat/completions",
            chat_completions,
            kind=Kind.GENERATE,
            methods=["POST"],
            body=chat_completions.body,
            answers=_WHOLE_OR_STREAM,
            errors=(504,),
        ),
    ]
