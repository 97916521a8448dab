"""Mutated and hostile versions: each is refused in words, or gives its exact bytes.

Nothing is written outside the local checkpoint, and no blob makes a pull take memory
that its tensor does not account for.
"""

from __future__ import annotations

import os
import random
import shutil
import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
import zstandard

from hotswap.errors import UpdateRejected
from hotswap.stream import (
    PullReport,
    SourceNotReady,
    StreamError,
    directory_of,
    pull,
    survey_source,
    verify_source,
)
from hotswap.stream.layout import INDEX
from tests.long.test_fuzz import mutate_bytes, mutate_header, mutate_json
from tests.unit.stream.streams import Stream, contents_of, refusal_of
from tests.unit.stream.test_blob_faults import parts, rewritten
from tests.unit.stream.test_field_faults import KINDS, Kind, added
from tests.unit.stream.test_sources import at_read

pytestmark = pytest.mark.long

CASES = 250
AT_MOST_BYTES = 12 * 2**20
"""Far above what pulls of these tensors take (their threads' buffers), far below a bomb."""


def before(root: Path, local: Path) -> Mapping[Path, tuple[int, int]]:
    """Everything below ``root`` but what is the local checkpoint's own: times and sizes."""
    return {
        path: (path.lstat().st_mtime_ns, path.lstat().st_size)
        for path in root.rglob("*")
        if not path.is_relative_to(local)
    }


def hostile(draw: random.Random, length: int) -> bytes:
    """A zstd frame that is no delta of a tensor of ``length`` bytes, or noise."""
    sized = draw.random() < 0.5
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=sized)
    count = draw.choice((0, 1, length, length + 1, 2**31, 2**32 - 1))
    positions = [draw.randrange(2**32) for _ in range(draw.randrange(4))]
    words = b"".join(number.to_bytes(4, "little") for number in (count, *positions))
    match draw.randrange(5):
        case 0:
            return compressor.compress(bytes(draw.choice((64, 256)) * 2**20))
        case 1:
            return compressor.compress(draw.randbytes(draw.choice((0, length - 1, length + 1))))
        case 2:
            return compressor.compress(words + draw.randbytes(len(positions)))
        case 3:
            return draw.randbytes(draw.randrange(1, 60))
        case _:
            frame = compressor.compress(bytes(length))
            return mutate_bytes(draw, frame)


def spoil(draw: random.Random, directory: Path) -> str:
    """Change one file of a version; how."""
    index = directory / INDEX
    path = max(directory.glob("*.safetensors"))
    match draw.randrange(7):
        case 0 if index.exists():
            index.write_bytes(mutate_json(draw, index.read_bytes()))
            return "index"
        case 1 if index.exists():
            index.write_bytes(mutate_bytes(draw, index.read_bytes()))
            return "index bytes"
        case 2 | 3 if index.exists():
            blobs, checksums = parts(path.read_bytes())
            name = draw.choice(sorted(blobs))
            rewritten(path, blobs | {name: hostile(draw, 3000)}, checksums)
            return "blob"
        case 4:
            path.write_bytes(mutate_bytes(draw, path.read_bytes()))
            return "bytes"
        case 5:
            os.truncate(path, draw.randrange(path.stat().st_size))
            return "size"
        case _:
            path.write_bytes(mutate_header(draw, path.read_bytes()))
            return "header"


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_a_spoilt_version(
    kind: Kind, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    stream = added(added(Stream(tmp_path), ("xor", "xxh3-128")), kind)
    directory, whole = directory_of(stream.source, 2), tmp_path / "whole"
    shutil.copytree(directory, whole)
    pull(stream.local, stream.source, 1, base_dir=stream.base)
    draw, outcomes = random.Random(str(kind)), Counter[str]()
    for _ in range(CASES):
        shutil.rmtree(directory)
        shutil.copytree(whole, directory)
        how = spoil(draw, directory)
        there = before(tmp_path, stream.local)
        tracemalloc.start()
        try:
            reports = list[PullReport]()
            error = refusal_of(partial(keep, reports, stream))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        if error is not None:
            outcomes[type(error).__name__] += 1
            assert isinstance(error, StreamError), how
            assert error.local_version == 1, how
            assert contents_of(stream.local) == stream.at(1), how
        else:
            outcomes["pulled"] += 1
            # One whose index says no encoding any more is a full version, of whatever it holds.
            assert reports[0].start == 2 or contents_of(stream.local) == stream.at(2), how
        assert peak < AT_MOST_BYTES, how
        assert before(tmp_path, stream.local) == there, how
        # What looks at it without pulling says the same, and raises nothing.
        survey_source(stream.source, base_dir=stream.base)
        verify_source(stream.source, base_dir=stream.base, threads=1)
        pulled(stream, 1)
    record_property("outcomes", dict(outcomes))
    assert sum(outcomes.values()) == CASES
    assert len(outcomes) >= 3


def pulled(stream: Stream, target: int = 2) -> PullReport:
    """Pull, with few threads."""
    return pull(stream.local, stream.source, target, base_dir=stream.base, threads=2)


def keep(reports: list[PullReport], stream: Stream) -> None:
    """Pull into ``reports``."""
    reports.append(pulled(stream))


def republish(stream: Stream, kind: Kind) -> None:
    """The same number again, with other bytes."""
    shutil.rmtree(directory_of(stream.source, 2))
    del stream.tensors[2:]
    added(stream, kind, share=0.4)


class Changing:
    """A stream with version 1 pulled, whose version 2 changes at one read of its last file."""

    def __init__(self, root: Path, kind: Kind, act: str) -> None:
        self.stream = added(added(Stream(root), ("xor", "xxh3-128")), kind)
        pulled(self.stream, 1)
        self.kind = kind
        self.act = act
        self.path = max(directory_of(self.stream.source, 2).glob("*.safetensors"))
        self.acted = False
        self.whole = [self.stream.at(2)]

    def change(self) -> None:
        self.acted = True
        if self.act == "rewrite":
            content = bytearray(self.path.read_bytes())
            content[-1] ^= 1
            self.path.write_bytes(content)
            if self.kind[0] == "full":
                # Nothing says which bytes a full version should have.
                self.whole.append(contents_of(self.path.parent))
        elif self.act == "republish":
            republish(self.stream, self.kind)
            self.whole.append(self.stream.at(2))
        else:
            shutil.rmtree(self.path.parent)

    def check(self, error: UpdateRejected | None) -> None:
        """One version entirely, or the one before."""
        if error is None:
            assert contents_of(self.stream.local) in self.whole
            return
        assert isinstance(error, StreamError)
        assert error.local_version == 1
        assert contents_of(self.stream.local) == self.stream.at(1)
        assert self.act != "remove" or isinstance(error, SourceNotReady)


@pytest.mark.parametrize("act", ["rewrite", "republish", "remove"])
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_a_source_that_changes_before_any_of_its_reads(
    kind: Kind, act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acted, number = True, 0
    while acted:
        number += 1
        changing = Changing(tmp_path / str(number), kind, act)
        with monkeypatch.context() as patched:
            at_read(patched, changing.path, number, changing.change)
            error = refusal_of(partial(pulled, changing.stream))
        changing.check(error)
        acted = changing.acted
        shutil.rmtree(tmp_path / str(number))
    assert number > 4
