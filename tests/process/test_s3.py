"""Streams in S3: a real server, the real client, and every command that takes a source."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import hotswap.stream.objects as objects_module
from hotswap.cli import main
from hotswap.stream import (
    Publisher,
    SourceNotReady,
    SourceUnusable,
    StreamError,
    prune,
    published_versions,
    pull,
    survey_source,
    verify_source,
)
from hotswap.stream.layout import INDEX, directory_of
from hotswap.stream.objects import Objects
from hotswap.stream.place import place_of
from tests.process.s3_store import BUCKET, access
from tests.process.store_gate import StoreGate
from tests.unit.stream.streams import Stream, contents_of
from tests.unit.stream.trained import after_step, bytes_in, first_state, write_base

pytestmark = pytest.mark.process

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The bucket, and an environment in which it is found."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "FSSPEC_"))]:
        monkeypatch.delenv(name)
    for name, value in access(s3_endpoint, tmp_path / "none").items():
        monkeypatch.setenv(name, value)
    return BUCKET


def test_a_command_publishes_and_another_pulls(
    bucket: str, tmp_path: Path, capsys: Capture
) -> None:
    url = f"s3://{bucket}/commands"
    states = [first_state()]
    states.append(after_step(states[0], 1))
    base = write_base(tmp_path / "base", states[0])
    made = write_base(tmp_path / "made", states[1])
    published = _said(capsys, "publish", made, "--to", url, "--base", base)
    assert published["directory"] == f"{url}/weight_v000001"
    local = tmp_path / "local"
    asked = ["pull", "--source", url, "--local", local, "--base", base, "--target"]
    assert _said(capsys, *asked, 1)["mode"] == "seed"
    assert contents_of(local) == bytes_in(states[1])
    assert _said(capsys, *asked, 2, code=3)["error"]["class"] == "SourceNotReady"


def _said(capsys: Capture, *words: object, code: int = 0) -> dict[str, Any]:
    assert main([*map(str, words), "--json"]) == code
    captured = capsys.readouterr()
    assert "hush" not in captured.out + captured.err
    found: dict[str, Any] = json.loads(captured.out)
    return found


def test_nothing_that_was_listed_or_looked_at_is_remembered(bucket: str) -> None:
    url = f"s3://{bucket}/{secrets.token_hex(4)}"
    caching = import_module("s3fs").S3FileSystem(skip_instance_cache=True, use_listings_cache=True)
    others = directory_of(Objects.at(url), 1) / "model.safetensors"
    for place in (Objects.at(url), Objects.at(url, fs=caching)):
        mine = directory_of(place, 1) / "model.safetensors"
        assert (published_versions(place), mine.content()) == ((), None)
        others.store.put(others.url, b"some")
        assert (mine.content(), published_versions(place)) == (b"some", (1,))
        # By now a listing has said how long it is.
        others.store.put(others.url, b"some more")
        assert (mine.content(), published_versions(place)) == (b"some more", (1,))
        others.store.delete(others.url)
        assert (mine.content(), published_versions(place)) == (None, ())


def test_credentials_that_have_run_out_are_read_again(
    bucket: str, s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with StoreGate(s3_endpoint) as gate:
        monkeypatch.setenv("AWS_ENDPOINT_URL", gate.url)
        _write_key(file, "first")
        place = Objects.at(f"s3://{bucket}/rotated")
        assert published_versions(place) == ()
        gate.expire("first")
        before = len(gate.requests)
        with pytest.raises(SourceUnusable, match=r"the store refuses listing it .*ExpiredToken"):
            published_versions(place)
        # Once with what it had, and once with what lies there.
        assert len(gate.requests) == before + 2
        _write_key(file, "second")
        assert published_versions(place) == ()


def _write_key(file: Path, key: str) -> None:
    text = f"[default]\naws_access_key_id = {key}\naws_secret_access_key = hush-hush\n"
    file.write_text(text)


@pytest.mark.long
def test_a_stream_is_published_looked_at_and_pruned(bucket: str, tmp_path: Path) -> None:
    url = f"s3://{bucket}/run"
    states = [first_state()]
    base = write_base(tmp_path / "base", states[0])
    with Publisher(
        url, run="a", base_dir=base, threads=1, anchor_every=3, aggregate_every=2, keep=2
    ) as publisher:
        for step in range(1, 6):
            states.append(after_step(states[-1], step))
            publisher.publish(states[-1])
            pull(tmp_path / "local", url, step, base_dir=base, threads=1)
            assert contents_of(tmp_path / "local") == bytes_in(states[step])
    assert published_versions(url) == (3, 4, 5)
    kinds = [one.kind for one in survey_source(url, base_dir=base).versions]
    assert kinds == ["full", "gap", "gap"]
    assert verify_source(url, base_dir=base).faults == ()
    with Publisher(url, run="a", base_dir=base, threads=1) as publisher:
        states.append(after_step(states[-1], 6))
        assert publisher.publish(states[-1]).version == 6
    pull(tmp_path / "late", url, 6, base_dir=base, threads=1)
    assert contents_of(tmp_path / "late") == bytes_in(states[6])


@pytest.mark.long
def test_two_publishers_never_mix_a_version(bucket: str, tmp_path: Path) -> None:
    url = f"s3://{bucket}/two"
    states = [first_state()]
    states += [after_step(states[0], 1), after_step(states[0], 2)]
    base = write_base(tmp_path / "base", states[0])
    with (
        Publisher(url, run="a", base_dir=base, threads=1, aggregate_every=1) as first,
        Publisher(url, run="a", base_dir=base, threads=1) as second,
    ):
        first.publish(states[1])
        with pytest.raises(StreamError, match="never written over"):
            second.publish(states[2])
        # The store itself refuses a second index.
        index = directory_of(place_of(url), 1) / INDEX
        assert isinstance(index, Objects)
        with pytest.raises(FileExistsError):
            index.store.put(index.url, b"{}", new=True)
    pull(tmp_path / "local", url, 1, base_dir=base, threads=1)
    assert contents_of(tmp_path / "local") == bytes_in(states[1])
    with pytest.raises(StreamError, match="is the stream of the run 'a'"):
        Publisher(url, run="b", base_dir=base)


@pytest.mark.long
def test_a_stream_of_another_writer_is_read_in_ranges(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(tmp_path, "xor", "full", "overwrite", length=120_000, count=3)
    place = place_of(f"s3://{bucket}/mirrored")
    assert isinstance(place, Objects)
    for path in sorted(stream.source.rglob("*")):
        if path.is_file():
            target = place / path.parent.name / path.name
            target.store.put(target.url, path.read_bytes())
    monkeypatch.setattr(objects_module, "_FIRST_BYTES", 4096)
    monkeypatch.setattr(objects_module, "_RANGE_BYTES", 30_000)
    for version in (1, 2, 3):
        pull(stream.local, place, version, base_dir=stream.base, threads=2)
        assert contents_of(stream.local) == stream.at(version)
    assert verify_source(place, base_dir=stream.base).faults == ()
    blob = directory_of(place, 2) / "model.safetensors"
    file = objects_module.ObjectFolder(directory_of(place, 2)).open_file("model.safetensors")
    content = blob.content()
    assert content is not None
    blob.store.put(blob.url, bytes(reversed(content)))
    with pytest.raises(OSError, match="was replaced while it was read"):
        file.read_bytes(5000, 90_000)
    blob.store.delete(blob.url)
    with pytest.raises(OSError, match="is gone"):
        file.read_bytes(5000, 90_000)
    assert isinstance(
        _refused(lambda: pull(tmp_path / "x", place, 2, base_dir=stream.base)), (SourceNotReady)
    )


def _refused(call: Callable[[], object]) -> StreamError:
    with pytest.raises(StreamError) as caught:
        call()
    return caught.value


@pytest.mark.long
def test_what_is_missing_is_said(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = write_base(tmp_path / "base", first_state())
    for call in (
        lambda: published_versions("s3://no-such-bucket/run"),
        lambda: pull(tmp_path / "local", "s3://no-such-bucket/run", 1, base_dir=base),
        lambda: Publisher("s3://no-such-bucket/run", run="a", base_dir=base),
    ):
        error = _refused(call)
        assert isinstance(error, SourceUnusable)
        assert "there is no bucket no-such-bucket; create it" in str(error)
    assert published_versions(f"s3://{bucket}/empty") == ()
    assert prune(f"s3://{bucket}/empty", keep=1).removed == ()
    with monkeypatch.context() as without:
        without.delenv("AWS_ACCESS_KEY_ID")
        without.delenv("AWS_SECRET_ACCESS_KEY")
        error = _refused(lambda: published_versions(f"s3://{bucket}/run"))
        assert isinstance(error, SourceUnusable)
        assert "no credentials for listing it" in str(error)
    # Nobody listens there: the first port is nobody's.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    error = _refused(lambda: published_versions(f"s3://{bucket}/run"))
    assert isinstance(error, SourceNotReady)
    assert "listing it failed 5 times" in str(error)
