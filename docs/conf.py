"""The site of these pages, made by ``make docs``: static, and nothing on it is fetched.

``index.md`` is the table of contents: its links, in their order, are the navigation.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import version as version_of
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent / "_site"))

project = "hotswap"
author = "the hotswap authors"
release = version_of("hotswap")
extensions = ["myst_parser", "state_diagram"]
exclude_patterns = ["_site"]

html_theme = "furo"
html_title = f"hotswap {release}"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]

PARTS = {
    "tutorial": "Tutorial",
    "how-to": "How-to",
    "reference": "Reference",
    "explanation": "Explanation",
}

_PAGE = re.compile(r"\]\((?P<part>[a-z-]+)/(?P<page>[a-z0-9-]+)\.md\)")
_OUTSIDE = re.compile(r"\[(?P<text>[^\]]*)\]\((?:\.\./){2,}[^)]*\)")


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add the navigation to the index; files beside ``docs/`` are named and not linked."""
    text = source[0]
    if docname == "index":
        pages = [(found["part"], found["page"]) for found in _PAGE.finditer(text)]
        text += "".join(_navigation(part, pages) for part in PARTS)
    source[0] = _OUTSIDE.sub(r"\g<text>", text)


def _navigation(part: str, pages: list[tuple[str, str]]) -> str:
    listed = "\n".join(f"{part}/{page}" for where, page in pages if where == part)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {PARTS[part]}\n\n{listed}\n```\n"


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _read)
