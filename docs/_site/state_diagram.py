"""A mermaid state diagram as a table: drawing it would need a script from elsewhere."""

from __future__ import annotations

import re

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

_STEP = re.compile(r"(?P<before>\S+) --> (?P<after>\S+): (?P<by>.+)")
_ENDS = {"[*]": "(start)"}


class StateDiagram(Directive):
    """The steps of a ``stateDiagram-v2``: from where, to where, by which command."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Called by docutils. Raises: an error of the build for any other diagram."""
        kind, *lines = [line.strip() for line in self.content if line.strip()]
        steps = [_STEP.fullmatch(line) for line in lines]
        if kind != "stateDiagram-v2" or not all(steps):
            raise self.error(f"wanted a stateDiagram-v2 of steps with a label, saw {kind!r}")
        rows = [f"| {_shown(s['before'])} | {_shown(s['after'])} | {s['by']} |" for s in steps if s]
        table = ["| from | to | by |", "|---|---|---|", *rows]
        parent = nodes.container()
        self.state.nested_parse(StringList(table, self.name), self.content_offset, parent)
        return list(parent.children)


def _shown(state: str) -> str:
    return _ENDS.get(state, f"`{state}`")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("mermaid", StateDiagram)
    return {"parallel_read_safe": True}
