"""What a log changes since one of its versions, and since no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hotswap.pulls.log_changes import LogChanges
from hotswap.sparse.cache import PatchCache
from hotswap.sparse.origin import Base, Origin
from hotswap.sparse.patch import merged
from hotswap.stream import Keep, LocalDamaged, pull
from hotswap.stream.append import LogLimits
from hotswap.stream.log import Holding, file_of, holding_in
from hotswap.stream.origin import origin_of
from hotswap.stream.state import Reserved
from hotswap.stream.stored import StoredTensors
from tests.unit.stream.streams import Stream


def origin(stream: Stream) -> Origin:
    with StoredTensors.at(stream.local, with_log=True) as stored:
        found = origin_of(stream.local, [one.file for one in stored.files.values()])
    assert found is not None
    return found


def reach(stream: Stream, target: int) -> Origin:
    pull(
        stream.local,
        stream.source,
        target,
        base_dir=stream.base,
        threads=1,
        keep=Keep.LOG,
        limits=LogLimits(share=100.0),
    )
    return origin(stream)


def changes(stream: Stream) -> LogChanges:
    held = holding_in(stream.local)
    assert isinstance(held, Holding)
    return LogChanges(stream.local, held, origin(stream), allowed=None)


def test_from_every_version_that_was_held(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "gap", "overwrite", "xor")
    seen = {number: reach(stream, number) for number in (0, 1, 3, 4)}
    assert len(set(seen.values())) == 4
    state = holding_in(stream.local)
    assert state is not None
    base = Base(path=str(stream.base), digest=str(state.plain.base_digest))
    begins: list[tuple[int, Origin | Base]] = [(0, base)]
    begins += [(number, seen[number]) for number in (0, 1, 3)]
    for number, begin in begins:
        patches = PatchCache()
        assert changes(stream).keep_since(begin, patches)
        way = patches.way(begin, seen[4])
        assert way is not None
        assert (way[0].before, way[0].after) == (seen[number], seen[4])
        for name, patch in merged(way).items():
            tensor = bytearray(stream.at(number)[name] + bytes(8))
            for word, value in zip(patch.words, patch.values, strict=True):
                tensor[int(word) * 8 : int(word) * 8 + 8] = int(value).to_bytes(8, "little")
            assert bytes(tensor[: patch.length_bytes]) == stream.at(4)[name]


def test_from_nothing_else(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "gap")
    seen = [reach(stream, number) for number in (0, 1, 2)]
    patches = PatchCache()
    others: list[Origin | Base] = [
        seen[2],
        replace(seen[1], state_digest="another"),
        replace(seen[1], files=()),
        Base(path=str(stream.base), digest="another"),
    ]
    for begin in others:
        assert not changes(stream).keep_since(begin, patches)
    assert len(patches) == 0
    assert repr(changes(stream)).startswith("<LogChanges to ")


def test_a_log_that_is_damaged_changes_nothing(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "gap")
    seen = [reach(stream, number) for number in (0, 1, 2)]
    file = Reserved(stream.local).log / file_of(2)
    file.write_bytes(file.read_bytes()[:-1])
    patches = PatchCache()
    with pytest.raises(LocalDamaged, match="is not the log"):
        changes(stream).keep_since(seen[1], patches)
    assert len(patches) == 0
