"""Processes that tests start and coverage does not trace.

Tracing makes the start of a server half as dear again, and all that it then computes dearer.
For tests of what other tests run too, traced: in this process, or in one of ``test_cli.py``
and ``test_shutdown.py``, which show what only a process of its own reaches.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["UNTRACED"]

UNTRACED: Mapping[str, str] = {"COVERAGE_PROCESS_CONFIG": ""}
"""Added to the environment of a process: coverage finds nothing that it should do there."""
