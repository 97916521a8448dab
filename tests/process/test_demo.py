"""The whole demo on a tiny model: training, servers, swaps under load, proof."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from hotswap.testing.checkpoints import make_checkpoint
from tests.markdown_blocks import ROOT

LIMIT_S = 240.0

pytestmark = pytest.mark.process


def run_demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "contrib.demo", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_the_demo_proves_its_swaps_on_a_tiny_model(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "model", seed=1)
    done = run_demo(tmp_path, "--model", "model", "--seconds", "0.2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "everything held" in done.stdout
    assert done.stdout.count("  yes  ") == 8
    assert " 0 aborted, 0 lost; " in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(("model", "wanted"), [("nowhere", "is not a directory"), (".", "has no")])
def test_a_wrong_model_is_one_clear_line(tmp_path: Path, model: str, wanted: str) -> None:
    done = run_demo(tmp_path, "--model", model)
    assert done.returncode == 1
    assert wanted in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_interrupted_demo_ends_its_server(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "model", seed=1)
    demo = subprocess.Popen(
        [sys.executable, "-u", "-m", "contrib.demo", "--model", "model", "--seconds", "200"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert demo.stdout is not None
        url = next(found[1] for line in demo.stdout if (found := re.search(r"(http://\S+)", line)))
        assert httpx.get(f"{url}/health", trust_env=False).status_code == 200
        demo.send_signal(signal.SIGTERM)
        rest, _ = demo.communicate(timeout=60)
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == 1
    assert rest.splitlines()[-1] == "demo: interrupted"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health", trust_env=False)
