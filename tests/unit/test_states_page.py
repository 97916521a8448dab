"""The page about the states is the one that the table makes."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from hotswap.state import GUARDS, TABLE, Command, Outcome, State
from hotswap.states_page import Step, page, steps

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "states.md"


def test_committed_page_is_the_generated_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "docs/reference/states.md is stale; "
        "run: python -m hotswap.states_page > docs/reference/states.md"
    )


def test_module_writes_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(PAGE.parents[2] / "hotswap" / "states_page.py"), run_name="__main__")
    assert capsys.readouterr().out == page()


def test_page_shows_every_rule_guard_and_state() -> None:
    text = page()
    for state, command in TABLE:
        assert f"| `{state}` | `{command}` |" in text
    for guard in GUARDS:
        assert f"| `{guard.name}` | `{guard.error.__name__}` | {guard.hint} |" in text
    for state in State:
        assert f"| `{state}` | " in text
    assert "```mermaid\nstateDiagram-v2\n" in text


def test_steps_are_found_by_trying() -> None:
    found = steps()
    swaps = {step for step in found if step.command is Command.SWAP}
    assert swaps == {
        Step(before=State.SERVING, command=Command.SWAP, outcome=outcome, after=end)
        for outcome, end in (
            (Outcome.DONE, State.SERVING),
            (Outcome.UNDONE, State.SERVING),
            (Outcome.TORN, State.INVALID),
        )
    }
    assert {(step.before, step.command) for step in found} == set(TABLE)
    assert not [s for s in found if s.outcome is Outcome.UNDONE and s.before is not s.after]
