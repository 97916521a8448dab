"""Renders chat templates in a process of its own, because a template is a program.

It comes with a model that somebody else made. Jinja's sandbox keeps it from files and
from Python's insides; it does not keep it from a loop without an end or from a string
of a terabyte. A process with a limit on its memory can be killed without harm.

Run as a script: one line of JSON in, ``{"template", "values", "most_characters"}``, one
line out, ``{"text"}`` or ``{"error"}``. It imports nothing of hotswap, which would take
seconds; it ends when its input does.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["answer", "environment", "main"]

_MEMORY_BYTES = 512 * 1024**2
_MAX_MESSAGE_CHARACTERS = 500


class GenerationBlocks(Extension):
    """``{% generation %}``: transformers marks with it what the model wrote; no text of its own."""

    tags: set[str] = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """What stands between the tags."""
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def environment() -> ImmutableSandboxedEnvironment:
    """Everything that a chat template may use, as in transformers."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, loopcontrols]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = _strftime_now
    return made


def answer(request: dict[str, Any]) -> dict[str, str]:
    """Render; whatever goes wrong is an ``error``, in words of the template or of Python."""
    most = request["most_characters"]
    pieces: list[str] = []
    length = 0
    try:
        for piece in _compiled(request["template"]).generate(**request["values"]):
            length += len(piece)
            if length > most:
                return {"error": f"it wrote more than {most} characters"}
            pieces.append(piece)
    except Exception as error:
        named = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
        return {"error": (named + (str(error) or type(error).__name__))[:_MAX_MESSAGE_CHARACTERS]}
    return {"text": "".join(pieces)}


def main() -> None:
    """Answer until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    _write({"ready": True})
    for line in sys.stdin.buffer:
        _write(answer(json.loads(line)))


@lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    return environment().from_string(template)


def _write(reply: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
    sys.stdout.buffer.flush()


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it stands: jinja2's own filter escapes it for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message))


def _strftime_now(form: str, now: Callable[[], datetime] = datetime.now) -> str:
    return now().strftime(form)


if __name__ == "__main__":
    main()
