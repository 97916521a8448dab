import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.untraced import UNTRACED

pytestmark = pytest.mark.process

APP = """
from hotswap.http import create_app
from hotswap.plugins import Plugins
from hotswap.settings import Settings
from hotswap.testing.fake_commands import FakeCommands
from hotswap.testing.scripted_engine import ScriptedEngine

app = create_app(FakeCommands(), ScriptedEngine(), Settings(), plugins=Plugins())
"""


def test_an_app_refuses_to_be_one_of_several_workers(tmp_path: Path) -> None:
    (tmp_path / "several.py").write_text(APP)

    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "hypercorn",
            "--workers",
            "2",
            "--bind",
            "127.0.0.1:0",
            "several:app",
        ],
        cwd=tmp_path,
        env={**os.environ, **UNTRACED},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    # hypercorn's own exit code does not always tell that its workers failed.
    assert "Running on" not in ended.stderr
    assert "hypercorn runs 2 workers, wanted one" in ended.stderr
