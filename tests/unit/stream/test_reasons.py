"""Why a copy was made anew is what was seen of it: nobody waits for it, or publishes it again."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hotswap.pulls.logged import held_checkpoint
from hotswap.stream import (
    Keep,
    LocalDamaged,
    StreamError,
    directory_of,
    pull,
    survey_local,
    verify_local,
)
from hotswap.stream.errors import SourceNotReady, without_advice
from hotswap.stream.layout import INDEX
from hotswap.stream.state import Reserved
from hotswap.testing.delivered import delivered
from tests.tiers import mostly_long
from tests.unit.stream.streams import Stream, held_contents

FILE = "model-00001-of-00002.safetensors"
ADVICE = re.compile(r"; |wait|publish|again|try")
Damage = Callable[[Path], object]


def cut(local: Path) -> None:
    os.truncate(local / FILE, 900)


def cut_header(local: Path) -> None:
    os.truncate(local / FILE, 9)


def emptied(local: Path) -> None:
    os.truncate(local / FILE, 0)


def longer(local: Path) -> None:
    with (local / FILE).open("ab") as file:
        file.write(b"more")


def other_header(local: Path) -> None:
    content = (local / FILE).read_bytes()
    (local / FILE).write_bytes(b"\0" * 8 + content[8:])


def gone(local: Path) -> None:
    (local / FILE).unlink()


def broken_index(local: Path) -> None:
    (local / INDEX).write_text("{")


def index_of_more(local: Path) -> None:
    index = json.loads((local / INDEX).read_text())
    index["weight_map"]["another"] = FILE
    (local / INDEX).write_text(json.dumps(index))


def deltas(local: Path) -> None:
    """The blobs of a version where weights were."""
    source = local.with_name("source")
    [blobs] = directory_of(source, 1).glob("*.safetensors")
    for path in local.glob("*.safetensors"):
        path.unlink()
    shutil.copy(blobs, local / "model.safetensors")
    (local / INDEX).unlink()


def broken_config(local: Path) -> None:
    (local / "config.json").write_text("{")


def cut_log(local: Path) -> None:
    [blob] = Reserved(local).log.iterdir()
    os.truncate(blob, blob.stat().st_size - 1)


def no_log(local: Path) -> None:
    [blob] = Reserved(local).log.iterdir()
    blob.unlink()


def spoilt_log(local: Path) -> None:
    [blob] = Reserved(local).log.iterdir()
    content = bytearray(blob.read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")
    content[begin:] = bytes(255 - byte for byte in content[begin:])
    blob.write_bytes(content)


OF_FILES = (
    cut,
    cut_header,
    emptied,
    longer,
    other_header,
    gone,
    broken_index,
    index_of_more,
    deltas,
    broken_config,
)
OF_LOGS = (cut_log, no_log, spoilt_log)
WAYS = [
    *((keep, damage) for keep in Keep for damage in OF_FILES),
    *((Keep.LOG, damage) for damage in OF_LOGS),
]
QUICK = [
    (Keep.FILES, cut),
    (Keep.COPIES, longer),
    *((Keep.LOG, damage) for damage in (emptied, gone, index_of_more, deltas, broken_config)),
    *((Keep.LOG, damage) for damage in OF_LOGS),
]
every_way = pytest.mark.parametrize("way", mostly_long(WAYS, but=QUICK))

Way = tuple[Keep, Damage]


def reached(root: Path, keep: Keep, *encodings: str) -> Stream:
    """A copy at version 1."""
    stream = Stream(root, *encodings)
    for target in (0, 1):
        pull(stream.local, stream.source, target, base_dir=stream.base, threads=1, keep=keep)
    return stream


@pytest.mark.parametrize("encoding", mostly_long(["xor", "overwrite", "gap"], but=["gap"]))
@every_way
def test_no_reason_gives_advice(
    tmp_path: Path, way: Way, encoding: str, caplog: pytest.LogCaptureFixture
) -> None:
    keep, damage = way
    stream = reached(tmp_path, keep, encoding, encoding)
    damage(stream.local)
    for fault in verify_local(stream.local, threads=1).faults:
        seen, *advice = fault.message.split("; pull the version again with --check")
        assert not ADVICE.search(seen.replace(str(tmp_path), "")), fault.message
        assert len(advice) == 1
    trouble = survey_local(stream.local).trouble or ""
    assert not ADVICE.search(trouble.replace(str(tmp_path), ""))
    report = pull(
        stream.local,
        stream.source,
        2,
        base_dir=stream.base,
        threads=1,
        keep=keep,
        check=True,
    )
    assert report.mode == "reseed"
    assert report.reason
    assert not ADVICE.search(report.reason.replace(str(tmp_path), "")), report.reason
    for record in caplog.records:
        said = record.getMessage().replace(str(tmp_path), "")
        assert not ADVICE.search(said.removesuffix("; it is seeded again")), said
    assert held_contents(stream.local) == stream.at(2)


@every_way
def test_a_reader_advises_to_pull_and_nothing_else(tmp_path: Path, way: Way) -> None:
    keep, damage = way
    stream = reached(tmp_path, keep, "xor", "gap")
    damage(stream.local)
    with pytest.raises(LocalDamaged) as caught, held_checkpoint(stream.local) as checkpoint:
        delivered(checkpoint.buckets())
    seen, advice, _ = str(caught.value).partition("; pull it again, which makes the copy anew")
    assert advice
    assert not ADVICE.search(seen.replace(str(tmp_path), "")), seen
    assert pull(
        stream.local, stream.source, 1, base_dir=stream.base, threads=1, keep=keep
    ).mode in ("seed", "reseed")
    assert held_contents(stream.local) == stream.at(1)


def test_advice_is_what_follows_what_was_seen() -> None:
    for said in (
        "a: 3 bytes are there, wanted 9; wait until the file is whole and pull again",
        "a: 3 bytes are there, wanted 9; publish the version again, or give another base",
        "a: 3 bytes are there, wanted 9; pull again",
        "a: 3 bytes are there, wanted 9",
    ):
        assert without_advice(SourceNotReady(said)) == "a: 3 bytes are there, wanted 9"
    held = StreamError("no; what follows is no advice")
    assert without_advice(held) == "no; what follows is no advice"
