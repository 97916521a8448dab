"""The examples of the page about ``hotswap.testing``, in this process: they need torch, which takes
longer to import than they take to run."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.markdown_blocks import ROOT, blocks_of
from tests.process.forked_server import ForkedServer

pytestmark = pytest.mark.process

PAGE = ROOT / "docs" / "reference" / "testing.md"
PRINTED = ("7 at epoch 1", "3 passed, 0 failed", "TestMine is made")


def test_the_examples_do_what_the_page_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    blocks = [block for block in blocks_of(PAGE) if block.language == "python"]
    assert len(blocks) == len(PRINTED)
    for block, printed in zip(blocks, PRINTED, strict=True):
        # As the program that it is, but that its server takes no second to import torch.
        script = tmp_path / "example.py"
        script.write_text(block.code.replace("ServerProcess(a", "ForkedServer(a"))
        runpy.run_path(str(script), {"ForkedServer": ForkedServer}, "__main__")
        assert printed in capsys.readouterr().out
