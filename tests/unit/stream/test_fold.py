"""Folding a range of versions gives what pulling them one after the other gives."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from hotswap.stream import PullMode, pull
from tests.unit.stream.streams import Stream, contents_of

VERSIONS = st.lists(st.sampled_from(["xor", "overwrite", "gap", "full"]), min_size=1, max_size=6)


@settings(max_examples=12, deadline=None)
@given(VERSIONS, st.data())
def test_any_range_at_once_or_version_by_version(versions: list[str], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        stream = Stream(Path(root), length=100, count=2)
        for encoding in versions:
            stream.add(encoding, share=data.draw(st.sampled_from([0.0, 0.02, 0.9])))
        stops = data.draw(st.sets(st.integers(0, len(versions)))) | {len(versions)}
        for stop in sorted(stops):
            pull(stream.local, stream.source, stop, base_dir=stream.base, threads=2)
            assert contents_of(stream.local) == stream.at(stop)


def test_a_fold_reads_and_writes_each_tensor_once(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "overwrite", "gap", "xor")
    pull(stream.local, stream.source, 0, base_dir=stream.base)
    once = pull(stream.local, stream.source, 1, base_dir=stream.base)
    assert once.mode is PullMode.DELTA
    rest = pull(stream.local, stream.source, 4, base_dir=stream.base)
    assert (rest.mode, rest.start, rest.versions) == (PullMode.FOLD, 1, (2, 3, 4))
    # The journal has the changed words once, whatever came in between.
    assert rest.written_bytes < 4 * once.written_bytes
    assert contents_of(stream.local) == stream.at(4)
