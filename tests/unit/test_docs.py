"""The documents say what there is: links, targets, routes, flags, hooks, errors."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import pytest

from hotswap import errors, hookspecs
from hotswap.http.app import core_routes
from hotswap.http.errors import GR_TABLE
from hotswap.plugins import load_plugins
from hotswap.settings import OPTIONS
from tests.markdown_blocks import (
    DIRECTIVES,
    GUIDES,
    PAGES,
    ROOT,
    RUNNABLE,
    SHOWN,
    Block,
    blocks_of,
)

_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def reference(name: str) -> str:
    return (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    links = [link for link in _LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link).resolve() for link in _LINK.findall(index.read_text())}
    assert set(ROOT.glob("docs/*/*.md")) == linked


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_block_says_what_a_test_does_with_it(page: Path) -> None:
    blocks = blocks_of(page)
    fences = page.read_text(encoding="utf-8").count("\n```")
    assert fences == 2 * len(blocks), f"{page.name} has a fence that blocks_of does not see"
    assert [block.place for block in blocks if block.language not in RUNNABLE + SHOWN] == []
    commands = [block for block in blocks if block.language in RUNNABLE]
    assert [block.place for block in commands if block.directive not in DIRECTIVES] == []
    named = [block for block in blocks if block.directive in ("run", "file", "tested")]
    assert [block.place for block in named if not block.expected] == []
    tested = [block for block in blocks if block.directive == "tested"]
    assert [block.place for block in tested if not (ROOT / str(block.expected)).is_file()] == []
    assert page not in GUIDES or len(commands) >= 5


def test_every_make_target_that_a_document_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = {
        words[index + 1]
        for page in PAGES
        for code in [block.code for block in blocks_of(page)] + inline_code(page)
        for line in code.splitlines()
        for words in [line.split()]
        for index, word in enumerate(words[:-1])
        if word == "make"
    }
    assert {"setup", "demo", "test", "lint", "bench"} <= named
    assert named <= targets


def inline_code(page: Path) -> list[str]:
    return re.findall(r"`(make [^`]*)`", page.read_text())


def test_every_target_is_phony_and_has_a_help_line() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    helped = re.findall(r"^([a-z-]+):.*## \S", makefile, re.MULTILINE)
    assert set(phony[1].split()) == set(helped)


def test_every_pin_is_exact() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert len(pins) > 50
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []


def test_every_route_is_in_the_http_reference() -> None:
    page = reference("http.md")
    rows = {
        path: line
        for line in page.splitlines()
        if line.startswith("| `/")
        for path in re.findall(r"`(/[^`]*)`", line.split("|")[1])
    }
    routes = core_routes()
    assert {route.path for route in routes} == set(rows)
    for route in routes:
        methods = sorted(set(route.methods or ()) - {"HEAD"})
        assert f"| {', '.join(methods)} | {route.kind} |" in rows[route.path]


def test_every_flag_and_every_variable_is_documented() -> None:
    options = [*OPTIONS, *load_plugins().options]
    flags, variables = reference("cli.md"), reference("environment.md")
    assert "weights-root" in [option.name for option in options]
    for option in options:
        assert re.search(rf"^\| `--{option.name}\b", flags, re.MULTILINE), option.name
        assert f"`{option.env}`" in variables, option.env


def test_the_documented_defaults_are_the_defaults() -> None:
    page = reference("cli.md")
    for option in OPTIONS:
        if option.default is None:
            continue
        shown = (
            "off"
            if option.default is False
            else f"`{option.default:g}`"
            if isinstance(option.default, float)
            else f"`{option.default}`"
        )
        row = re.search(rf"^\| `--{option.name}\b[^|]*\| ([^|]*) \|", page, re.MULTILINE)
        assert row is not None, option.name
        assert row[1] == shown, option.name


def test_every_error_is_documented_with_its_status_and_code() -> None:
    page = reference("errors.md")
    for name in errors.__all__:
        kind = getattr(errors, name)
        if kind is errors.HotswapError:
            continue
        wire = GR_TABLE.get(kind)
        shown = "none" if wire is None else f"{wire.status} `{wire.code}`"
        assert f"| `{name}` | {shown} |" in page, name


def test_every_edge_error_is_documented() -> None:
    page = reference("errors.md")
    edge = [wire for kind, wire in GR_TABLE.items() if not issubclass(kind, errors.HotswapError)]
    assert edge
    for wire in edge:
        assert f"| {wire.status} `{wire.code}` |" in page, wire


def test_every_hook_is_documented_with_what_holds_for_it() -> None:
    page = reference("hooks.md")
    hooks = {
        name: function
        for name, function in inspect.getmembers(hookspecs.Hooks, inspect.isfunction)
        if name.startswith("hotswap_")
    }
    assert hooks.keys() == hookspecs.CONTRACTS.keys()
    for name, function in hooks.items():
        signature = inspect.signature(function)
        arguments = ", ".join(list(signature.parameters)[1:])
        prefix = "async " if inspect.iscoroutinefunction(function) else ""
        contract = hookspecs.CONTRACTS[name]
        limit = "none" if contract.timeout_s is None else f"{contract.timeout_s:g} s"
        assert (
            f"| `{prefix}{name}({arguments})` | `{signature.return_annotation}` | "
            f"{contract.called} | {contract.thread} | {limit} | {contract.raising} |"
        ) in page, name
        assert f"### `{name}`\n" in page, name
    assert hookspecs.TIMEOUTS_S.keys() == {
        name for name, function in hooks.items() if inspect.iscoroutinefunction(function)
    }


def test_the_documented_api_versions_are_those_that_are_understood() -> None:
    page = reference("hooks.md")
    oldest, newest = hookspecs.OLDEST_API_VERSION, hookspecs.API_VERSION
    assert f"hotswap_api_version = {newest}\n" in page
    assert f"versions {oldest} to {newest}:" in " ".join(page.split())


def test_the_documented_server_command_has_flags_that_exist() -> None:
    known = {f"--{option.name}" for option in [*OPTIONS, *load_plugins().options]}
    served = {page: served_by(page) for page in PAGES}
    assert [page for page in GUIDES if len(served[page]) != 1] == []
    for block in [block for blocks in served.values() for block in blocks]:
        words = shlex.split(block.code)
        words = words[words.index(".venv/bin/hotswap") :]
        assert words[1] == "serve", block.place
        assert {word for word in words if word.startswith("--")} <= known, block.place


def served_by(page: Path) -> list[Block]:
    return [block for block in blocks_of(page) if block.directive == "serve"]
