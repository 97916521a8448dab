"""Processes that pull into one log while it is written into the files: nothing is lost or done
twice, and nobody waits for ever."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotswap.stream import verify_local
from hotswap.stream.log import holding_in
from hotswap.stream.state import Reserved
from tests.markdown_blocks import ROOT
from tests.tiers import mostly_long
from tests.unit.stream.streams import Stream, contents_of, held_contents

VERSIONS = 12
WAYS = ((2, "gap"), (4, "xor"), (3, "overwrite"))


def answers_of(stream: Stream, count: int) -> list[Any]:
    """What each of ``count`` processes did."""
    spec = {
        "local": str(stream.local),
        "source": str(stream.source),
        "base": str(stream.base),
        "versions": str(VERSIONS),
    }
    command = [sys.executable, "-m", "tests.unit.pulls.shared_log", json.dumps(spec), str(count)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.parametrize("way", mostly_long(WAYS, but=[(2, "gap")]), ids=str)
def test_of_many_processes_each_version_is_kept_once(tmp_path: Path, way: tuple[int, str]) -> None:
    count, encoding = way
    stream = Stream(tmp_path, *(encoding,) * VERSIONS)
    answers = answers_of(stream, count)
    assert len(answers) == count
    pulls = [answer["pulls"] for answer in answers]
    for target, of_round in enumerate(zip(*pulls, strict=True)):
        # One of them did it, and the others found it done.
        assert [version for _, version in of_round] == [target] * count
        modes = [mode for mode, _ in of_round if mode != "noop"]
        assert modes in ([["seed"]] if target == 0 else [["log"], ["delta"], ["fold"]])
    assert [answer["warnings"] for answer in answers] == [[]] * count

    # Each version was written into the files at most once, and in order.
    spans = sorted(tuple(span) for answer in answers for span in answer["spans"])
    assert spans
    assert spans[0][0] == 0
    for (_, until), (since, _) in itertools.pairwise(spans):
        assert since == until
    held = holding_in(stream.local)
    assert held is not None
    assert held.plain.number == spans[-1][1]
    assert held.state.number == VERSIONS
    assert contents_of(stream.local) == stream.at(held.plain.number)
    assert held_contents(stream.local) == stream.at(VERSIONS)
    assert verify_local(stream.local).faults == ()
    left = {path.name for path in Reserved(stream.local).log.iterdir()}
    assert left == {version.file for version in held.versions}
    assert not list(Reserved(stream.local).home.glob("*.tmp"))
