"""Fenced blocks of our documents, each with the directive in the comment above it.

``<!-- run: TEXT -->``     executed; what it prints has TEXT in it
``<!-- file: NAME -->``    written to NAME, for the blocks after it to use
``<!-- serve -->``         the server that the blocks after it talk to
``<!-- prepare -->``       makes the checkpoints ``.demo/A`` and ``.demo/B``
``<!-- make -->``          targets of the Makefile
``<!-- tested: PATH -->``  commands that the test in PATH executes

The blocks of a page are executed in order, in one directory. Every block in ``bash`` or
``python`` has a directive, in every page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "plugins/*/*.md", "contrib/*/*.md")
    for path in ROOT.glob(pattern)
)
GUIDES = (
    ROOT / "README.md",
    ROOT / "docs" / "tutorial" / "first-swap.md",
    ROOT / "docs" / "how-to" / "curl.md",
)
"""The pages that lead somebody through a server from the start."""

RUNNABLE = ("bash", "python")
SHOWN = ("http", "ini", "json", "mermaid", "text", "toml")
DIRECTIVES = ("run", "file", "serve", "prepare", "make", "tested")

_BLOCK = re.compile(
    r"(?:^<!-- (?P<directive>[a-z]+)(?:: (?P<expected>.*?))? -->\n)?"
    r"^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block: where it is, what it is, and what a test does with it."""

    document: str
    line: int
    language: str
    code: str
    directive: str | None
    expected: str | None

    @property
    def place(self) -> str:
        """For messages: file and line."""
        return f"{self.document}:{self.line}"


def blocks_of(document: Path) -> list[Block]:
    """Every fenced block of a Markdown file, in order."""
    text = document.read_text(encoding="utf-8")
    return [
        Block(
            document=str(document.relative_to(ROOT)),
            line=text.count("\n", 0, found.start("code")),
            language=found["language"],
            code=found["code"],
            directive=found["directive"],
            expected=found["expected"],
        )
        for found in _BLOCK.finditer(text)
    ]


def executed(page: Path) -> list[Block]:
    """What a test does something for: the blocks that are written, served or run.

    The files of a page that runs nothing belong to the test that its ``tested`` blocks name.
    """
    blocks = [block for block in blocks_of(page) if block.directive in ("run", "file", "serve")]
    return blocks if any(block.directive == "run" for block in blocks) else []
