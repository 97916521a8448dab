"""Versions in an object store are read as those of a directory are, and no less carefully."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hotswap.stream.objects as objects_module
import hotswap.stream.seed as seed_module
from hotswap.errors import UpdateRejected
from hotswap.stream import (
    DeltaDamaged,
    PullMode,
    SourceNotReady,
    SourceUnusable,
    StreamError,
    VersionMalformed,
    publish_delta,
    published_versions,
    pull,
    survey_source,
    verify_source,
)
from hotswap.stream.layout import INDEX, directory_of
from hotswap.stream.objects import ObjectFile, ObjectFolder, Objects
from hotswap.stream.place import opened, place_of, real_name
from tests.unit.stream.faulty_store import URL, uploaded
from tests.unit.stream.stored_stream import Stored, once, put
from tests.unit.stream.streams import contents_of, digests_of, write_checkpoint

FILE = "model-00000-of-00001.safetensors"


def test_every_version_is_pulled_and_looked_at_as_from_a_directory(stored: Stored) -> None:
    assert published_versions(stored.place) == (1, 2, 3, 4, 5)
    modes = [stored.pull(version) for version in (1, 3, 3, 4, 5, 2)]
    assert modes == [
        PullMode.SEED,
        PullMode.FOLD,
        PullMode.NOOP,
        PullMode.RESEED,
        PullMode.DELTA,
        PullMode.RESEED,
    ]
    state = json.loads((stored.stream.local / ".weight_sync/state.json").read_text())
    assert state["checkpoint_source_dir"] == URL == real_name(stored.place)
    base = stored.stream.base
    there, here = (
        survey_source(source, base_dir=base) for source in (stored.stream.source, stored.place)
    )
    assert replace(here, source="") == replace(there, source="")
    verified = verify_source(stored.place, base_dir=base)
    assert (verified.faults, verified.versions) == ((), (1, 2, 3, 4, 5))


def test_a_hook_that_runs_before_the_first_look_gets_the_url(stored: Stored) -> None:
    heard = list[tuple[object, int]]()

    def hook(source: object, version: int) -> None:
        heard.append((source, version))
        assert stored.fs.requests == []

    stream = stored.stream
    pull(stream.local, stored.place, 1, base_dir=stream.base, pre_read=hook)
    assert heard == [(URL, 1)]


def test_what_is_not_whole_is_not_ready(stored: Stored) -> None:
    stored.pull(1)
    index = stored.file(2, INDEX)
    text = index.content()
    assert text is not None
    index.store.delete(index.url)
    # The blobs are there, and without an index there may be more to come.
    assert published_versions(stored.place) == (1, 3, 4, 5)
    assert isinstance(stored.refused(2), SourceNotReady)
    put(index, text)
    blob = stored.file(2, FILE)
    whole = blob.content()
    assert whole is not None
    blob.store.delete(blob.url)
    assert isinstance(stored.refused(2), SourceNotReady)
    put(blob, whole[:-1])
    error = stored.refused(2)
    assert isinstance(error, SourceNotReady)
    assert error.local_version == 1
    put(blob, whole)
    assert stored.pull(2) is PullMode.DELTA
    assert isinstance(stored.refused(9), SourceNotReady)


def test_shards_without_their_index_are_no_version(tmp_path: Path) -> None:
    stored = Stored(tmp_path, "full")
    directory = tmp_path / "sharded"
    write_checkpoint(directory, stored.stream.tensors[0], files=2)
    (directory / INDEX).unlink()
    uploaded(directory, directory_of(stored.place, 2))
    assert published_versions(stored.place) == (1,)
    assert isinstance(stored.refused(2), SourceNotReady)


def test_a_listing_that_lags_keeps_nobody_from_a_version(stored: Stored) -> None:
    stored.fs.hidden |= {"weight_v000004", "weight_v000005"}
    assert published_versions(stored.place) == (1, 2, 3)
    stored.pull(3)
    assert isinstance(stored.refused(4), SourceNotReady)  # a single file, and no index that says so
    stored.fs.hidden.clear()
    stored.pull(4)
    stored.fs.hidden.add("weight_v000005")
    assert stored.pull(5) is PullMode.DELTA


@pytest.mark.parametrize("request_", ["read", "info"])
def test_an_object_that_is_replaced_while_it_is_read_is_noticed(
    tmp_path: Path, request_: str
) -> None:
    stored = Stored(tmp_path, "xor", length=200_000)
    blob = stored.file(1, FILE)
    other = bytes(reversed(blob.content() or b""))
    assert len(other) > 4096
    stored.fs.after = once(request_, FILE, lambda: put(blob, other))
    error = stored.refused(1)
    assert isinstance(error, SourceNotReady)
    assert "replaced while it was read" in str(error)


def test_an_object_that_goes_or_shrinks_while_it_is_read_is_noticed(stored: Stored) -> None:
    blob = stored.file(1, FILE)
    whole = blob.content() or b""
    stored.fs.before = once("read", FILE, lambda: blob.store.delete(blob.url))
    assert "is gone" in str(stored.refused(1))
    put(blob, whole)
    stored.fs.before = once("read", FILE, lambda: put(blob, whole[:40]))
    assert "became shorter" in str(stored.refused(1))


def test_a_long_object_is_read_in_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Stored(tmp_path, "full", length=150_000, count=3)
    monkeypatch.setattr(objects_module, "_FIRST_BYTES", 4096)
    monkeypatch.setattr(objects_module, "_RANGE_BYTES", 10_000)
    assert stored.pull(1) is PullMode.SEED
    reads = [path for request, path in stored.fs.requests if request == "read"]
    assert reads.count("weight_v000001/model.safetensors") >= 45
    with ObjectFolder(directory_of(stored.place, 1)) as folder:
        assert repr(folder) == f"<ObjectFolder {URL}/weight_v000001>"
        with folder.open_file("model.safetensors") as file:
            assert repr(file) == f"<ObjectFile {URL}/weight_v000001/model.safetensors " + (
                f"{file.size_bytes} bytes>"
            )
            with pytest.raises(OSError, match="no descriptor"):
                file.fileno()
            with pytest.raises(OSError, match=f"ends at byte {file.size_bytes}"):
                file.read_bytes(file.size_bytes - 1, 2)


@pytest.mark.parametrize(("window", "times"), [(3100, 4), (7000, 2), (2**20, 1)])
def test_a_new_copy_is_read_in_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int, times: int
) -> None:
    """Of tensors that lie side by side, four of 3000 bytes, whatever a delta on them changes."""
    monkeypatch.setattr(seed_module, "_WINDOW_BYTES", window)
    monkeypatch.setattr(objects_module, "_FIRST_BYTES", 2000)
    stored = Stored(tmp_path, "full", "gap")
    assert stored.pull(2) is PullMode.SEED
    reads = [path for request, path in stored.fs.requests if request == "read"]
    # The beginning, which has the header, is read once more with the first of them.
    assert reads.count("weight_v000001/model.safetensors") == 1 + times
    again = json.loads((stored.stream.local / ".weight_sync/state.json").read_text())["tensors"]
    assert again == digests_of(stored.stream.local)


def test_a_new_copy_by_a_damaged_delta_is_none(tmp_path: Path) -> None:
    stored = Stored(tmp_path, "full", "xor")
    file = stored.file(2, FILE)
    content = file.content() or b""
    put(file, content[:-1] + bytes([content[-1] ^ 255]))
    error = stored.refused(2)
    assert isinstance(error, DeltaDamaged)
    assert "version 2, tensor" in str(error)


def test_a_hostile_header_is_refused_before_it_is_read(stored: Stored) -> None:
    blob = stored.file(1, FILE)
    put(blob, (2**40).to_bytes(8, "little") + bytes(5_000_000))
    error = stored.refused(1)
    assert isinstance(error, VersionMalformed)
    assert f"says that its header has {2**40} bytes" in str(error)
    reads = [path for request, path in stored.fs.requests if request == "read" and FILE in path]
    assert len(reads) == 1


def test_names_that_are_no_plain_ones_are_malformed(stored: Stored) -> None:
    index = json.loads(stored.file(1, INDEX).content() or b"")
    name = next(iter(index["weight_map"]))
    index["weight_map"][name] = "caf\u00e9.safetensors"
    put(stored.file(1, INDEX), json.dumps(index).encode())
    assert isinstance(stored.refused(1), VersionMalformed)
    folder = ObjectFolder(directory_of(stored.place, 1))
    with pytest.raises(VersionMalformed, match="no plain name"):
        folder.open_file("a/b")
    with pytest.raises(UpdateRejected, match="is not there") as caught:
        folder.open_file("nothing")
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(SourceUnusable, match=r"pip install 'hotswap\[gs\]'"):
        published_versions("gs://bucket/run")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(SourceUnusable, match=r"pip install 'hotswap\[fsspec\]'"):
        published_versions("memory://bucket/run")


def test_a_store_of_the_process_is_found_by_its_url(stored: Stored, tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/run/"
    place = place_of(url)
    assert isinstance(place, Objects)
    uploaded(stored.stream.source, place)
    assert published_versions(url) == (1, 2, 3, 4, 5)
    report = pull(tmp_path / "other", url, 5, base_dir=stored.stream.base)
    assert report.version == 5
    assert contents_of(tmp_path / "other") == stored.stream.at(5)
    for path in place.names():
        target = place
        for part in path.split("/"):
            target = target / part
        target.store.delete(target.url)
    assert published_versions(url) == ()


def test_a_path_is_never_a_url(tmp_path: Path) -> None:
    assert place_of(str(tmp_path)) == tmp_path == place_of(tmp_path)
    with pytest.raises(SourceUnusable, match="lost a slash; give it as a str"):
        place_of(Path("s3://bucket/run"))
    url: Any = "memory://bucket/run"
    with pytest.raises(StreamError, match="is a URL, and this writes directories only"):
        publish_delta(url, 1, [])
    with opened(tmp_path) as folder:
        assert not folder.has("nothing")
    assert real_name(tmp_path / "." / "x") == str(tmp_path / "x")


def test_json_objects_are_bounded_and_read_in_one_state(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ObjectFolder(directory_of(stored.place, 1))
    assert "weight_map" in folder.read_object(INDEX)
    file = stored.file(1, INDEX)
    text = file.content() or b""
    stored.fs.before = once("read", INDEX, lambda: put(file, text + b" "))
    with pytest.raises(UpdateRejected, match="cannot be read"):
        ObjectFolder(directory_of(stored.place, 1)).read_object(INDEX)
    monkeypatch.setattr(objects_module, "_MAX_JSON_BYTES", 10)
    with pytest.raises(UpdateRejected, match="bytes of JSON, wanted at most 10"):
        folder.read_object(INDEX)
    stat = file.store.stat(file.url)
    assert stat is not None
    assert ObjectFile(file, stat).read_bytes(0, 0) == b""
