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
from tests.untraced import UNTRACED

LIMIT_S = 240.0

pytestmark = pytest.mark.process


def run_demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "contrib.demo", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **UNTRACED},
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


def test_a_broken_checkpoint_is_one_clear_line(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model", seed=1)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    done = run_demo(tmp_path, "--model", "model")
    assert done.returncode == 1
    assert done.stderr.startswith("demo: MODEL=model is no whole checkpoint: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.long
def test_a_server_that_dies_is_one_line_with_its_log(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "model", seed=1)
    demo = started_demo(tmp_path, "--seconds", "2")
    try:
        url_of(demo)
        (server,) = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
        os.kill(int(server), signal.SIGKILL)
        rest, _ = demo.communicate(timeout=60)
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == 1
    last = rest.splitlines()[-1]
    assert last.startswith("demo: hotswap serve ended with -9: ")
    assert last.endswith("(log: .demo/live.log)")
    assert "Traceback" not in rest


def started_demo(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "contrib.demo", "--model", "model", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **UNTRACED},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def url_of(demo: subprocess.Popen[str]) -> str:
    """Read its output up to the line that names the server."""
    assert demo.stdout is not None
    return next(found[1] for line in demo.stdout if (found := re.search(r"(http://\S+)", line)))


@pytest.mark.long
def test_an_interrupted_demo_ends_its_server(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "model", seed=1)
    demo = started_demo(tmp_path, "--seconds", "200")
    try:
        url = url_of(demo)
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
