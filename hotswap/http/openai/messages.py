"""Messages of a chat, as a template gets them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from hotswap.http.openai.errors import ParameterRefused

__all__ = ["RESERVED", "template_messages", "template_values"]

RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "chat_template"})
"""Names of a template's values that ``chat_template_kwargs`` may not set."""


def template_messages(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """The messages with their content as text; every other field goes through.

    Raises: ParameterRefused naming the message.
    """
    return [_message(message, f"messages[{number}]") for number, message in enumerate(messages)]


def template_values(extra: Mapping[str, object]) -> dict[str, object]:
    """``chat_template_kwargs``. Raises: ParameterRefused for a reserved name."""
    taken = sorted(RESERVED & set(extra))
    if taken:
        raise ParameterRefused(
            "chat_template_kwargs",
            f"chat_template_kwargs has {', '.join(taken)}; send it as a field of its own",
        )
    return dict(extra)


def _message(message: Mapping[str, object], place: str) -> dict[str, object]:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise ParameterRefused("messages", f"{place}.role is {role!r}, wanted a name")
    calls = message.get("tool_calls")
    kept = dict(message) | {"content": _content(message.get("content"), place)}
    if isinstance(calls, list):
        kept["tool_calls"] = [_call(call) for call in calls]
    return kept


def _content(content: object, place: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ParameterRefused(
            "messages",
            f"{place}.content is a {type(content).__name__}, wanted a text or a list of parts",
        )
    return "\n".join(
        _part(part, f"{place}.content[{number}]") for number, part in enumerate(content)
    )


def _part(part: object, place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("text") if isinstance(part, dict) else None
    if kind != "text" or not isinstance(text, str):
        seen = repr(kind) if isinstance(part, dict) else f"a {type(part).__name__}"
        raise ParameterRefused(
            "messages", f"{place} is of type {seen}, wanted a part of type 'text' with its text"
        )
    return text


def _call(call: object) -> object:
    """A tool call; templates want its arguments as an object, clients send them as JSON text."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        return call
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        parsed = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": parsed}}
