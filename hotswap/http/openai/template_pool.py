"""A few processes that render chat templates, so that one that hangs holds up nobody else."""

from __future__ import annotations

from collections.abc import Mapping
from queue import LifoQueue

from hotswap.http.openai.template_process import TemplateProcess

__all__ = ["RENDERERS", "TemplatePool"]

RENDERERS = 4
"""Renderings at once: a thread and, from the first time on that it is needed, a process each."""


class TemplatePool:
    """As many renderings at once as there are processes; ``limit_s`` bounds each."""

    def __init__(self, *, size: int = RENDERERS, limit_s: float = 10.0) -> None:
        self._every = [TemplateProcess(limit_s=limit_s) for _ in range(size)]
        # The last one first: what was never needed at once is never started.
        self._idle: LifoQueue[TemplateProcess] = LifoQueue()
        for process in self._every:
            self._idle.put(process)

    def __repr__(self) -> str:
        return f"<TemplatePool {self._idle.qsize()} of {len(self._every)} idle>"

    def render(self, template: str, values: Mapping[str, object]) -> str:
        """The text of ``template``. Blocks, also until a process is idle; any thread.

        Raises: TemplateFailed.
        """
        process = self._idle.get()
        try:
            return process.render(template, values)
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """End every process; the next rendering starts another."""
        for process in self._every:
            process.close()
