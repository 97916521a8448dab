"""Sources that change, lag or fail while they are read; what a pull says on its way."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hotswap.stream import (
    Progress,
    SourceNotReady,
    StreamError,
    VersionMalformed,
    directory_of,
    pull,
)
from hotswap.stream import progress as progress_module
from hotswap.stream.layout import INDEX
from hotswap.stream.progress import Tally
from hotswap.stream.stored import StoredTensors
from hotswap.weights.folder import Folder, OpenFile
from tests.unit.stream.streams import Stream, contents_of, made, write_checkpoint

FILE = "model-00000-of-00001.safetensors"


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    made = Stream(tmp_path, "xor", "xor")
    pull(made.local, made.source, 1, base_dir=made.base)
    return made


def not_ready(stream: Stream, target: int = 2) -> None:
    with pytest.raises(SourceNotReady) as caught:
        pull(stream.local, stream.source, target, base_dir=stream.base)
    assert (caught.value.local_version, caught.value.retryable) == (1, True)
    assert contents_of(stream.local) == stream.at(1)


def at_read(
    monkeypatch: pytest.MonkeyPatch, path: Path, number: int, act: Callable[[], None]
) -> None:
    """Act before the read ``number`` of the file ``path``."""
    seen, read_at = list[str](), OpenFile.read_at

    def reading(file: OpenFile, offset: int, *outs: memoryview) -> None:
        if os.readlink(f"/proc/self/fd/{file.fileno()}") == str(path):
            seen.append(file.name)
            if len(seen) == number:
                act()
        read_at(file, offset, *outs)

    monkeypatch.setattr(OpenFile, "read_at", reading)


@pytest.mark.parametrize("number", range(1, 8))
def test_a_blob_that_changes_while_it_is_read(
    stream: Stream, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = directory_of(stream.source, 2) / FILE
    content = path.read_bytes()

    def rewrite() -> None:
        path.write_bytes(content[:-2] + b"xx")
        os.utime(path, ns=(number, number))

    at_read(monkeypatch, path, number, rewrite)
    with pytest.raises(StreamError) as caught:
        pull(stream.local, stream.source, 2, base_dir=stream.base)
    assert caught.value.local_version == 1
    assert contents_of(stream.local) == stream.at(1)
    path.write_bytes(content)
    pull(stream.local, stream.source, 2, base_dir=stream.base)
    assert contents_of(stream.local) == stream.at(2)


@pytest.mark.parametrize("number", range(2, 5))
def test_a_version_that_is_published_again_while_it_is_read(
    stream: Stream, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def republish() -> None:
        kept = stream.tensors.pop()
        shutil.rmtree(directory_of(stream.source, 2))
        stream.add("overwrite", share=0.5)
        stream.tensors[-1] = kept

    at_read(monkeypatch, directory_of(stream.source, 2) / INDEX, number, republish)
    not_ready(stream)


def test_a_full_version_that_changes_while_it_is_copied(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.add("full")
    path = directory_of(stream.source, 3) / "model.safetensors"
    at_read(monkeypatch, path, 6, lambda: os.truncate(path, 100))
    not_ready(stream, 3)
    assert list((stream.local / ".weight_sync" / "incoming").iterdir()) == []


@pytest.mark.parametrize(("name", "reads"), [(FILE, 7), (INDEX, 4)])
def test_a_source_that_cannot_be_read(
    stream: Stream, name: str, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing() -> None:
        raise OSError(5, "Input/output error")

    path = directory_of(stream.source, 2) / name
    for number in range(1, reads + 1):
        with monkeypatch.context() as patched:
            at_read(patched, path, number, failing)
            not_ready(stream)
    with monkeypatch.context() as patched:
        at_read(patched, path, reads + 1, failing)
        pull(stream.local, stream.source, 2, base_dir=stream.base)


def test_a_file_that_vanishes_between_the_look_and_the_opening(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Folder.names

    def stale(folder: Folder) -> frozenset[str]:
        return names(folder) | {FILE}

    monkeypatch.setattr(Folder, "names", stale)
    (directory_of(stream.source, 2) / FILE).unlink()
    not_ready(stream)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: (d / "model-00001-of-00002.safetensors").unlink(), "model-00001-of-00002"),
        (lambda d: shutil.copy(d / FILE2, d / "model-00001-of-00002.safetensors"), "names 2 tens"),
        (lambda d: _to_bin(d), "wanted safetensors"),
        (lambda d: (d / INDEX).write_text('{"weight_map": {}}'), "names 0 tensors"),
    ],
)
def test_a_base_that_is_no_checkpoint(
    tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    stream = Stream(tmp_path, "xor")
    change(stream.base)
    with pytest.raises(StreamError, match=message) as caught:
        pull(stream.local, stream.source, 1, base_dir=stream.base)
    assert caught.value.local_version is None


FILE2 = "model-00002-of-00002.safetensors"


def _to_bin(directory: Path) -> None:
    for path in directory.glob("model*"):
        path.unlink()
    (directory / "pytorch_model.bin").write_bytes(b"")


def test_a_tensor_in_two_files_without_an_index(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "base", made(), files=1)
    shutil.copy(directory / "model.safetensors", directory / "a.safetensors")
    (directory / "model.safetensors").rename(directory / "b.safetensors")
    with pytest.raises(VersionMalformed, match="is in two files"):
        StoredTensors.at(directory)


def test_only_what_the_index_assigns_is_a_tensor_and_files_are_copied_whole(
    tmp_path: Path,
) -> None:
    stream = Stream(tmp_path, "xor")
    # The second file also holds a stale copy of a tensor of the first.
    stale = stream.tensors[0] | {"layers.0.weight": stream.tensors[1]["layers.0.weight"]}
    shutil.rmtree(tmp_path / "stale", ignore_errors=True)
    write_checkpoint(tmp_path / "stale", stale, files=1)
    shutil.copy(tmp_path / "stale" / "model.safetensors", stream.base / FILE2)
    for target in (0, 1):
        pull(stream.local, stream.source, target, base_dir=stream.base)
        assert contents_of(stream.local) == stream.at(target)


def test_what_lies_beside_a_full_version_wins_over_the_base(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "full")
    (stream.base / "tokenizer.json").write_text("base")
    (stream.base / "sub").mkdir()
    (directory_of(stream.source, 1) / "config.json").write_text("full")
    pull(stream.local, stream.source, 1, base_dir=stream.base)
    assert (stream.local / "tokenizer.json").read_text() == "base"
    assert (stream.local / "config.json").read_text() == "full"
    assert not (stream.local / "sub").exists()


def test_a_seed_is_read_in_pieces_of_16_mib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, sizes, read_at = (
        Stream(tmp_path, length=2**25 + 5, count=1),
        list[int](),
        OpenFile.read_at,
    )

    def reading(file: OpenFile, offset: int, *outs: memoryview) -> None:
        sizes.extend(map(len, outs))
        read_at(file, offset, *outs)

    monkeypatch.setattr(OpenFile, "read_at", reading)
    pull(stream.local, stream.source, 0, base_dir=stream.base)
    assert [size for size in sizes if size >= 2**20] == [2**24] * 2
    assert max(sizes) == 2**24
    monkeypatch.undo()
    assert contents_of(stream.local) == stream.at(0)


def test_progress_is_told_and_logged(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress_module, "LOG_EVERY_S", 0.0)
    told = list[Progress]()
    with caplog.at_level(logging.INFO, "hotswap.pull"):
        shutil.rmtree(stream.local)
        report = pull(
            stream.local,
            stream.source,
            2,
            base_dir=stream.base,
            threads=1,
            progress=told.append,
        )
    seeded = [one for one in told if one.phase == "seed"]
    assert seeded[-1].done_bytes >= seeded[-1].total_bytes > 0
    assert [one.done_bytes for one in seeded] == sorted(one.done_bytes for one in seeded)
    assert "seed: 0.0 of 0.0 MB" in caplog.text
    assert f"{stream.local}: version 2 (seed, 2 versions on 0)" in caplog.text
    assert set(report.seconds) >= {"read", "seed"}
    assert report.written_bytes >= sum(map(len, stream.at(2).values()))
    assert repr(Tally()) == "<Tally  0 of 0 bytes>"
