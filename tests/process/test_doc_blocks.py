"""The blocks of every document, executed in order in one directory.

The checkpoints are tiny ones under the names that the documents use, the port is a
free one, and ``.venv`` is this environment; nothing else is changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from hotswap.testing.checkpoints import make_checkpoint
from hotswap.testing.server import ServerProcess
from tests.markdown_blocks import GUIDES, PAGES, ROOT, Block, executed
from tests.process.forked_server import ForkedServer
from tests.untraced import UNTRACED

ADDRESS = "http://127.0.0.1:30000"
PROGRAM = ".venv/bin/hotswap"
LIMIT_S = 60.0

# Stands for the documented program: shows how the shell called it.
SHOWS_CALL = r"""#!/bin/sh
printf '%s\0' "$@"
env -0 | grep -z '^HOTSWAP_' | sed -z 's/^/env:/'
exit 0
"""

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("curl") is None, reason="the documents call curl"),
]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that looks like a prepared checkout, and is the current one."""
    make_checkpoint(tmp_path / ".demo" / "A", seed=1)
    make_checkpoint(tmp_path / ".demo" / "B", seed=2)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    # A page that keeps something in the home directory must not touch the real one.
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name, value in UNTRACED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "document",
    [page for page in PAGES if executed(page)],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_the_blocks_of_a_document_do_what_it_says(document: Path, checkout: Path) -> None:
    server: ServerProcess | None = None
    ran = 0
    with ExitStack() as servers:
        for block in executed(document):
            if block.directive == "serve":
                servers.close()
                server = servers.enter_context(served_by(block, checkout))
            elif block.directive == "file":
                written(block, checkout)
            else:
                ran += 1
                printed = output_of(block, server)
                assert block.expected
                assert block.expected in printed, f"{block.place} printed:\n{printed}"
    assert ran >= (3 if document in GUIDES else 1)


def served_by(block: Block, checkout: Path) -> ServerProcess:
    """The server of a documented ``hotswap serve``, on a port of its own."""
    arguments, environ = call_of(block, checkout)
    assert arguments[0] == "serve", block.place
    at = arguments.index("--model")
    flags = [*arguments[1:at], *arguments[at + 2 :]]
    return ForkedServer(arguments[at + 1], *flags, environ=environ, allow_weight_update=False)


def call_of(block: Block, checkout: Path) -> tuple[list[str], Mapping[str, str]]:
    """What the shell makes of a block: the program's arguments, and its variables."""
    stub = checkout / "shows-call"
    stub.write_text(SHOWS_CALL)
    stub.chmod(0o700)
    assert block.code.count(PROGRAM) == 1, block.place
    shown = run_bash(block, block.code.replace(PROGRAM, str(stub))).split("\0")[:-1]
    variables = [word.removeprefix("env:") for word in shown if word.startswith("env:")]
    arguments = [word for word in shown if not word.startswith("env:")]
    return arguments, dict(variable.split("=", 1) for variable in variables)


def written(block: Block, checkout: Path) -> None:
    """Put a block where its directive says, inside the directory."""
    assert block.expected, block.place
    path = (checkout / block.expected).resolve()
    assert path.is_relative_to(checkout.resolve()), block.place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.code, encoding="utf-8")


def output_of(block: Block, server: ServerProcess | None) -> str:
    """Execute a block and return what it printed; it must succeed."""
    code = block.code
    if server is not None:
        assert ADDRESS in code or ".venv/bin/" in code or block.language == "python", block.place
        code = code.replace(ADDRESS, server.base_url)
    else:
        assert ADDRESS not in code, f"{block.place} talks to a server that no block serves"
    if block.language == "bash":
        return run_bash(block, code)
    return run([sys.executable, "-c", code], block)


def run_bash(block: Block, code: str) -> str:
    """Execute ``code``, what is left of a block, in a strict shell."""
    return run(["bash", "-eu", "-o", "pipefail", "-c", code], block)


def run(command: list[str], block: Block) -> str:
    """What the command printed to its standard output."""
    environ = {name: value for name, value in os.environ.items() if name[:8] != "HOTSWAP_"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environ
    )
    assert done.returncode == 0, f"{block.place} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout
