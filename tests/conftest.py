"""What the long tests counted, at the end of a run.

Here, because with pytest-xdist only the first conftest files are loaded where the
summary is written; the counts come with the reports, as user properties.
"""

from __future__ import annotations

import gc
import signal

import hypothesis
import pytest
from _pytest.terminal import TerminalReporter

# How long one example takes says how busy the machine is, and nothing of what is tested.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")

# A shell that starts this in the background has Ctrl-C ignored, here and in every process that
# is started from here; tests of it, and servers that are ended by it, would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave what is there before the first test out of all later collections.

    Thousands of tests and what they import are no garbage, and each test that looks for what
    was left behind would look at them all.
    """
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """One line for each test that recorded properties."""
    lines = [
        f"{report.nodeid}: " + ", ".join(f"{name} {value}" for name, value in counts)
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        if isinstance(report, pytest.TestReport) and (counts := report.user_properties)
    ]
    if lines:
        terminalreporter.section("counts")
        for line in lines:
            terminalreporter.line(line)
