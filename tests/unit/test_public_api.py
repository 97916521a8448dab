"""What is public is documented, and what is documented is public."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

import hotswap

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = {
    page.name: page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md")
}
_ROWS = [line for line in REFERENCE["python.md"].splitlines() if line.startswith("| `")]
MODULES = {
    row.split("`")[1]: re.findall(r"`(\w+)`", row.split("|")[2])
    for row in _ROWS
    if row.startswith("| `hotswap.")
}
NAMES = [row.split("`")[1] for row in _ROWS if not row.startswith("| `hotswap.")]


def test_every_name_of_hotswap_is_in_the_reference_and_no_other() -> None:
    assert sorted(NAMES) == sorted(hotswap.__all__)
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("module", MODULES)
def test_every_name_of_a_public_module_is_in_the_reference(module: str) -> None:
    documented = {
        word
        for text in REFERENCE.values()
        for word in re.findall(r"`[^`\n]*?(\w+)[^`\w\n]*`", text)
    }
    public = set(import_module(module).__all__)
    assert sorted(public - documented) == [], "name it in a page of docs/reference"


@pytest.mark.parametrize("module", ["hotswap", *MODULES])
def test_every_public_name_exists_and_says_what_it_is(module: str) -> None:
    found = import_module(module)
    for name in found.__all__:
        value = getattr(found, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{module}.{name}"


def test_every_module_that_a_how_to_imports_from_is_public() -> None:
    """Somebody who copies a block must not depend on what may change without notice."""
    imported = {
        name
        for page in (DOCS / "how-to").glob("*.md")
        for name in re.findall(r"^from (hotswap[.\w]*) import", page.read_text(), re.MULTILINE)
    }
    own = {name for name in imported if name.split(".")[0] == "hotswap"}
    assert "hotswap.client" in own
    assert own <= {"hotswap", *MODULES}
