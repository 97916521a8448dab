"""The chat template of a model directory: where it is kept, and what it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from hotswap.http.openai.template_pool import TemplatePool
from hotswap.http.openai.template_process import TemplateFailed

__all__ = ["ChatTemplate", "Renderer", "TemplateFailed", "load_chat_template"]

_MAX_FILE_BYTES = 32 * 1024 * 1024
_SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


class Renderer(Protocol):
    """Runs templates elsewhere: in one process, or in one of several."""

    def render(self, template: str, values: Mapping[str, object]) -> str:
        """The text of ``template``. Blocks; any thread. Raises: TemplateFailed."""
        ...

    def close(self) -> None:
        """Let go of every process."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """Sources by name (``default``, ``tool_use``), and the special tokens they may name.

    ``problem`` says why there is none.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None
    process: Renderer = field(default_factory=TemplatePool, repr=False)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[object] | None,
        add_generation_prompt: bool,
        values: Mapping[str, object],
    ) -> str:
        """The prompt's text. Blocks; any thread. Raises: TemplateFailed.

        ``values`` are more names for the template; they win over the special tokens.
        """
        if self.problem is not None:
            raise TemplateFailed(self.problem)
        given = {
            **self.special_tokens,
            **values,
            "messages": messages,
            "tools": tools,
            "documents": values.get("documents"),
            "add_generation_prompt": add_generation_prompt,
        }
        return self.process.render(self._source(tools), given)

    def _source(self, tools: Sequence[object] | None) -> str:
        if tools is not None and "tool_use" in self.sources:
            return self.sources["tool_use"]
        try:
            return self.sources["default"]
        except KeyError:
            names = ", ".join(sorted(self.sources))
            raise TemplateFailed(f"the model has no default template, only {names}") from None


def load_chat_template(directory: str | None) -> ChatTemplate:
    """The template of a Hugging Face directory. Never raises: the server runs without one.

    ``chat_template.jinja`` wins over ``tokenizer_config.json``, as in transformers.
    """
    if directory is None:
        return ChatTemplate(problem="this server has no model directory to take one from")
    root = Path(directory)
    try:
        config = _object(_content(root / "tokenizer_config.json"))
        # A file of its own up to transformers 4.
        legacy = _object(_content(root / "special_tokens_map.json"))
        sources = _sources(root, config)
    except (OSError, ValueError) as error:
        return ChatTemplate(problem=f"the chat template cannot be read: {error}")
    if not sources:
        return ChatTemplate(
            problem="the model has no chat template (chat_template.jinja, or chat_template in "
            "tokenizer_config.json); use /v1/completions"
        )
    return ChatTemplate(sources=sources, special_tokens=_special_tokens({**legacy, **config}))


def _sources(root: Path, config: Mapping[str, object]) -> dict[str, str]:
    """Raises: ValueError for what is no template."""
    named = root / "additional_chat_templates"
    files = {path.stem: path for path in sorted(named.glob("*.jinja"))}
    files["default"] = root / "chat_template.jinja"
    found = {name: text for name, path in files.items() if (text := _content(path)) is not None}
    return found or _configured(config.get("chat_template"))


def _configured(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    try:
        named = msgspec.convert(value, list[_Named])
    except msgspec.ValidationError as error:
        raise ValueError(f"chat_template in tokenizer_config.json: {error}") from error
    return {item.name: item.template for item in named}


class _Named(msgspec.Struct):
    name: str
    template: str


def _special_tokens(config: Mapping[str, object]) -> dict[str, str]:
    tokens = {name: _text_of(config.get(name)) for name in _SPECIAL_TOKENS}
    return {name: text for name, text in tokens.items() if text is not None}


def _text_of(token: object) -> str | None:
    """A token as a string, or as an object that keeps it in ``content``."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _content(path: Path) -> str | None:
    """The file's text, None where there is none. Raises: OSError, ValueError."""
    if not path.is_file():
        return None
    size = path.stat().st_size
    if size > _MAX_FILE_BYTES:
        raise ValueError(f"{path} has {size} bytes, wanted at most {_MAX_FILE_BYTES}")
    return path.read_text(encoding="utf-8")


def _object(text: str | None) -> dict[str, object]:
    """Raises: ValueError for text that is no JSON object."""
    if text is None:
        return {}
    return msgspec.json.decode(text, type=dict[str, object])
