"""What the benchmarks of pulls compare with and count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contrib.bench.plain_reader import apply_version, mark
from contrib.bench.plain_second_copy import copy_base, copy_version, held
from contrib.bench.pull_load import longest_gap_s, rate
from contrib.peers.sources import added_file
from hotswap.stream import directory_of
from tests.unit.stream.streams import Stream, contents_of

_PATCH = """From: someone
diff --git a/old.py b/old.py
index 1..2 100644
--- a/old.py
+++ b/old.py
@@ -1 +1 @@
-one
+two
diff --git a/pkg/new.py b/pkg/new.py
new file mode 100644
--- /dev/null
+++ b/pkg/new.py
@@ -0,0 +1,3 @@
+first = 1
+
+last = "+"
"""


def test_the_plain_reader_gives_the_bytes_of_each_version(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor", length=5 * 2**20 + 3, count=2)
    mark(stream.base, 0)
    for version in (1, 2):
        apply_version(stream.base, directory_of(stream.source, version), threads=2)
        assert contents_of(stream.base) == stream.at(version)
        state = json.loads((stream.base / ".weight_sync" / "state.json").read_text())
        assert state == {"version": f"{version:06d}"}


def test_the_plain_reader_refuses_what_it_has_made_wrong(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor")
    with pytest.raises(RuntimeError, match="wrong checksum"):
        apply_version(stream.base, directory_of(stream.source, 2), threads=1)


def test_the_two_copies_take_turns(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor", "xor", length=5 * 2**20 + 3, count=2)
    local = tmp_path / "plain"
    copy_base(local, stream.base)
    for version in (1, 2, 3):
        copy_version(local, directory_of(stream.source, version), threads=2)
        assert contents_of(held(local)) == stream.at(version)
        assert len(list(local.glob("weights_*"))) == 2


def test_one_copy_stays_as_it_is_when_a_checksum_is_wrong(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor")
    local = tmp_path / "plain"
    copy_base(local, stream.base)
    with pytest.raises(RuntimeError, match="wrong checksum"):
        copy_version(local, directory_of(stream.source, 2), threads=1)
    assert contents_of(held(local)) == stream.at(0)
    copy_version(local, directory_of(stream.source, 1), threads=1)
    assert contents_of(held(local)) == stream.at(1)


def test_only_tokens_while_pulls_run_are_counted() -> None:
    ends = [0.0, 1.0, 2.0, 2.5, 3.0, 7.0, 8.0]
    assert rate(ends, [(0.5, 2.5)]) == 1.5
    assert rate(ends, [(0.5, 1.5), (2.25, 3.25)]) == 1.5


def test_a_gap_counts_when_a_part_of_it_is_inside_a_pull() -> None:
    ends = [0.0, 1.0, 3.0, 7.0, 8.0]
    assert longest_gap_s(ends, [(0.1, 0.2)]) == 1.0
    assert longest_gap_s(ends, [(0.1, 0.2), (2.9, 2.95)]) == 2.0
    assert longest_gap_s(ends, [(2.0, 3.5)]) == 4.0


def test_the_file_that_a_patch_adds() -> None:
    assert added_file(_PATCH, "/new.py") == 'first = 1\n\nlast = "+"\n'
    for name in ("/old.py", "/other.py"):
        with pytest.raises(FileNotFoundError, match="the patch adds no"):
            added_file(_PATCH, name)
