"""Templates that mean harm: each is an error, and the next one is rendered all the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotswap.http.openai import template_child
from hotswap.http.openai.template_process import TemplateFailed, TemplateProcess

ENDLESS = "{% set r = range(90000) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}"
DOUBLING = (
    "{% set ns = namespace(s='x' * 1000) %}"
    "{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
)


@pytest.fixture
def process() -> Iterator[TemplateProcess]:
    made = TemplateProcess()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ raise_exception('roles must alternate') }}", "^roles must alternate$"),
        ("{% for %}", "Expected"),
        ("{{ messages.nothing.more }}", "no attribute|undefined"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{% for i in range(99999999) %}{% endfor %}", "OverflowError"),
        ("{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}", "more than 4194304"),
        ("{{ 'x' * 10 ** 12 }}", "MemoryError|no answer"),
        ("{{ '%1000000000000d' % 1 }}", "MemoryError|Error|no answer"),
        ("{{ 'x' | center(10 ** 12) }}", "MemoryError|no answer"),
        (DOUBLING, "MemoryError|no answer"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    ],
)
def test_a_bad_template_is_an_error(process: TemplateProcess, template: str, why: str) -> None:
    with pytest.raises(TemplateFailed, match=why):
        process.render(template, {"messages": []})

    assert process.render("{{ messages[0] }}", {"messages": ["fine"]}) == "fine"


def test_a_template_without_an_end_is_killed() -> None:
    process = TemplateProcess(limit_s=0.5)
    try:
        with pytest.raises(TemplateFailed, match=r"did not end within 0\.5 s"):
            process.render(ENDLESS, {})
        assert repr(process) == "<TemplateProcess pid=None>"
    finally:
        process.close()


def test_a_killed_process_is_an_error_once(process: TemplateProcess) -> None:
    assert process.render("{{ x }}", {"x": 1}) == "1"
    assert process._child is not None
    child = process._child
    os.kill(child.pid, signal.SIGKILL)
    child.wait()

    with pytest.raises(TemplateFailed, match="its process ended"):
        process.render("{{ x }}", {"x": 2})
    assert process.render("{{ x }}", {"x": 3}) == "3"
    assert process._child is not child


def test_one_process_serves_until_it_is_closed(process: TemplateProcess) -> None:
    assert process._child is None
    process.render("", {})
    child = process._child
    process.render("", {})
    assert process._child is child
    assert child is not None
    assert repr(process) == f"<TemplateProcess pid={child.pid}>"

    process.close()
    process.close()
    assert child.returncode == 0


def test_it_ends_with_its_owner() -> None:
    process = TemplateProcess()
    process.render("", {})
    child = process._child
    assert child is not None
    del process
    assert child.returncode == 0


def test_values_come_through_as_they_are(process: TemplateProcess) -> None:
    text = "line\nbreak \u2028 \U0001f600 \x00 <&'\">"
    assert process.render("{{ x }}", {"x": text}) == text
    assert process.render("{{ x | tojson }}", {"x": {"b": [1, None], "a": "<é>"}}) == (
        '{"b": [1, null], "a": "<é>"}'
    )


def test_values_that_lie_too_deep(process: TemplateProcess) -> None:
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TemplateFailed, match="too deep"):
        process.render("{{ x }}", {"x": deep})
    while isinstance(deep, list):
        # One by one: to free them all at once may be too deep as well.
        deep = deep.pop()


def test_the_child_answers_in_lines() -> None:
    asked = {"template": "{{ a }}", "values": {"a": 1}, "most_characters": 10}
    lines = "".join(json.dumps(asked | {"values": {"a": n}}) + "\n" for n in (1, 10**12))
    child = subprocess.run(
        [sys.executable, "-P", str(Path(template_child.__file__))],
        input=lines,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    answers = [json.loads(line) for line in child.stdout.splitlines()]
    assert answers == [
        {"ready": True},
        {"text": "1"},
        {"error": "it wrote more than 10 characters"},
    ]
    assert child.stderr == ""
