"""The README's and the tutorial's blocks, executed in order against a real server.

The checkpoints are tiny ones under the names that the documents use, and the port
is a free one; nothing else is changed.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hotswap.testing.checkpoints import make_checkpoint
from hotswap.testing.server import ServerProcess
from tests.markdown_blocks import DOCUMENTS, Block, blocks_of

ADDRESS = "http://127.0.0.1:30000"
LIMIT_S = 60.0

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("curl") is None, reason="the documents call curl"),
]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that looks like a prepared checkout, and is the current one."""
    make_checkpoint(tmp_path / ".demo" / "A", seed=1)
    make_checkpoint(tmp_path / ".demo" / "B", seed=2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_blocks_of_a_document_do_what_it_says(document: Path, checkout: Path) -> None:
    blocks = blocks_of(document)
    served = next(block for block in blocks if block.directive == "serve")
    ran = [block for block in blocks if block.directive == "run"]
    model, *flags = server_arguments(served)
    with ServerProcess(model, *flags, allow_weight_update=False) as server:
        for block in ran:
            printed = output_of(block, server.base_url)
            assert block.expected is not None
            assert block.expected in printed, f"{block.place} printed:\n{printed}"
    assert len(ran) >= 3


def server_arguments(block: Block) -> list[str]:
    """The model, and every other flag, of a documented ``hotswap serve``."""
    words = shlex.split(block.code)[2:]
    at = words.index("--model")
    return [words[at + 1], *words[:at], *words[at + 2 :]]


def output_of(block: Block, url: str) -> str:
    """Execute a block and return what it printed; it must succeed."""
    assert ADDRESS in block.code or block.language == "python", block.place
    code = block.code.replace(ADDRESS, url)
    shell = ["bash", "-eu", "-o", "pipefail", "-c", code]
    command = shell if block.language == "bash" else [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, f"{block.place} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout
