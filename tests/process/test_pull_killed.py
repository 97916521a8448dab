"""A real server is killed in the middle of ``/pull_weights``, or its disk refuses.

``tests/long/test_pull_cuts.py`` does so in more ways.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.process.killed_servers import Cut, Rig

pytestmark = pytest.mark.process


def test_the_next_server_s_pull_gives_the_exact_bytes(tmp_path: Path, a: Path, b: Path) -> None:
    rig = Rig(tmp_path, a, b)
    # Half of the calls in, the journal is there and the files are half written.
    assert rig.kill([Cut(start=1, target=2, share=0.5)]) == ["recovered"]
    with rig.server() as process, process.client() as http:
        said = rig.refuse(http, Cut(start=2, target=3, share=0.1), errno.ENOSPC)
        assert said["local_version"] == 2
        assert "make room and pull again" in said["message"]
