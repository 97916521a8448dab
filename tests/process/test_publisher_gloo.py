"""Two processes publish together over torch.distributed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hotswap.stream import published_versions
from tests.markdown_blocks import ROOT
from tests.unit.stream.trained import after_step, bytes_in, first_state, pulled, write_base

pytestmark = pytest.mark.process

WORLD = 2


def test_ranks_of_a_process_group(tmp_path: Path) -> None:
    states = [first_state()]
    for step in (1, 2):
        states.append(after_step(states[-1], step))
    base = write_base(tmp_path / "base", states[0])
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.process.publishing_rank",
                json.dumps({"rank": rank, "world": WORLD, "root": str(tmp_path)}),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD)
    ]
    try:
        done = [one.communicate(timeout=120) for one in ranks]
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    assert [one.returncode for one in ranks] == [0] * WORLD, [errors for _, errors in done]
    for rank, (output, _) in enumerate(done):
        seen = json.loads(output)
        assert seen["repr"] == f"<TorchRanks {rank} of {WORLD}>"
        assert "'embed.weight' is not the same on rank 0" in seen["error"]
        assert seen["published"] == "2"
    assert published_versions(tmp_path / "source") == (1, 2)
    assert pulled(tmp_path, tmp_path / "source", 2, base=base) == bytes_in(states[2])
