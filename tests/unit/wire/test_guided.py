"""1 000 payloads that coverage leads to; make test-long has 30 000."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from hotswap.wire import FLATTENED
from tests.unit.wire.originals import originals
from tests.untraced import UNTRACED

pytestmark = [
    pytest.mark.usefixtures("by_name", "no_segment_left"),
    pytest.mark.skipif(
        find_spec("atheris") is None, reason="atheris has no wheel for this Python or machine"
    ),
]

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("runs", [1_000, pytest.param(30_000, marks=pytest.mark.long)])
def test_payloads_that_coverage_leads_to_are_refused_or_right(runs: int, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    with originals() as payloads:
        for number, (load_format, payload) in enumerate(payloads):
            (corpus / f"{number}").write_bytes(bytes([load_format == FLATTENED]) + payload)
        done = subprocess.run(
            [sys.executable, "-m", "tests.unit.wire.guided", str(runs), str(corpus)],
            cwd=ROOT,
            env={**os.environ, **UNTRACED},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"Done {runs} runs" in done.stderr
