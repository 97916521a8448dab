"""A base that is another one than the stream began with is told from a version that is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotswap.stream import (
    BaseChanged,
    DeltaDamaged,
    Keep,
    Publisher,
    StreamError,
    VersionMalformed,
    directory_of,
    publish_delta,
    pull,
    verify_source,
)
from hotswap.stream.checksums import OWN_CHECKSUM
from tests.unit.stream.streams import Stream, changed, contents_of, made, write_checkpoint

FILE = "model-00000-of-00001.safetensors"
KINDS = [
    ("gap", "xxh3-128"),
    ("xor", "blake3"),
    *(
        pytest.param(encoding, checksum, marks=pytest.mark.long)
        for encoding, checksum in (
            ("xor", "xxh3-128"),
            ("overwrite", "xxh3-128"),
            ("gap", "adler32"),
        )
    ),
]
every_kind = pytest.mark.parametrize(("encoding", "checksum"), KINDS)
every_keep = pytest.mark.parametrize("keep", Keep)


def published(root: Path, encoding: str, checksum: str = OWN_CHECKSUM, **shape: int) -> Stream:
    """Two versions on ``base``, and another checkpoint of the same tensors at ``other``."""
    stream = Stream(root, **shape)
    for _ in range(2):
        stream.add(encoding, checksum_format=checksum)
    write_checkpoint(root / "other", made(7, **shape))
    return stream


def refusal(
    stream: Stream, kind: type[StreamError], target: int, base: Path, keep: Keep = Keep.FILES
) -> str:
    with pytest.raises(StreamError) as caught:
        pull(stream.local, stream.source, target, base_dir=base, threads=1, keep=keep)
    assert (type(caught.value), caught.value.retryable) == (kind, False)
    return str(caught.value)


@every_kind
@every_keep
def test_a_first_pull_on_another_base(
    encoding: str, checksum: str, keep: Keep, tmp_path: Path
) -> None:
    stream = published(tmp_path, encoding, checksum)
    told = refusal(stream, BaseChanged, 2, tmp_path / "other", keep)
    assert f"{tmp_path / 'other'}: version 1 gives wrong bytes for each of 4 tensors" in told
    assert "give the one that the stream began with" in told
    pull(stream.local, stream.source, 2, base_dir=stream.base, threads=1, keep=keep)
    assert contents_of(stream.local) == stream.at(2)


@every_kind
@every_keep
def test_a_copy_of_another_base(encoding: str, checksum: str, keep: Keep, tmp_path: Path) -> None:
    stream = published(tmp_path, encoding, checksum)
    pull(stream.local, stream.source, 0, base_dir=tmp_path / "other", keep=keep)
    before = contents_of(stream.local)
    assert "so it was made for another base" in refusal(
        stream, BaseChanged, 1, tmp_path / "other", keep
    )
    assert contents_of(stream.local) == before


@pytest.mark.parametrize("count", [1, 4])
@every_keep
def test_what_the_copy_was_made_from_is_named(count: int, keep: Keep, tmp_path: Path) -> None:
    stream = published(tmp_path, "gap", count=count)
    for target in (0, 1):
        pull(stream.local, stream.source, target, base_dir=stream.base, threads=1, keep=keep)
    before = contents_of(stream.local)
    for target in (1, 2):
        told = refusal(stream, BaseChanged, target, tmp_path / "other", keep)
        assert f"the local checkpoint was made from the base {stream.base}" in told
        assert told.endswith("holds version 1, whole")
    assert contents_of(stream.local) == before


def test_of_one_tensor_nobody_can_tell(tmp_path: Path) -> None:
    stream = published(tmp_path, "gap", count=1)
    told = refusal(stream, DeltaDamaged, 2, tmp_path / "other")
    assert "publish the version again" in told
    assert f"a base checkpoint that is another one than {tmp_path / 'other'}" in told


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("encoding", ["xor", "overwrite", "gap"])
def test_a_damaged_version_is_no_other_base(encoding: str, version: int, tmp_path: Path) -> None:
    stream = published(tmp_path, encoding)
    path = directory_of(stream.source, version) / FILE
    content = bytearray(path.read_bytes())
    content[-30:-20] = bytes(10)
    path.write_bytes(content)
    told = refusal(stream, DeltaDamaged, 2, stream.base)
    assert f"version {version}, tensor" in told
    assert "base" not in told.removeprefix(str(tmp_path))


def test_another_model_is_told_by_its_tensors(tmp_path: Path) -> None:
    stream = published(tmp_path, "gap")
    write_checkpoint(tmp_path / "small", made(count=2))
    told = refusal(stream, VersionMalformed, 1, tmp_path / "small")
    assert "changes 2 tensors that the checkpoint lacks" in told
    assert "base" in told


@pytest.mark.parametrize("encoding", ["xor", "gap"])
def test_verify_doubts_the_base_too(encoding: str, tmp_path: Path) -> None:
    stream = published(tmp_path, encoding)
    found = verify_source(stream.source, base_dir=tmp_path / "other", threads=1)
    assert "weight_v000001 gives wrong bytes for every tensor" in str(found.note)
    assert "another base checkpoint than this --base?" in str(found.note)
    assert verify_source(stream.source, base_dir=stream.base, threads=1).note is None


def test_a_publisher_that_goes_on_with_another_base_is_told(tmp_path: Path) -> None:
    base, other = made(), made(7)
    write_checkpoint(tmp_path / "base", base)
    write_checkpoint(tmp_path / "other", other)
    source, new = tmp_path / "source", changed(base, 1)
    with Publisher(source, run="run", base_dir=tmp_path / "base") as publisher:
        publisher.publish(new)
    with (
        Publisher(source, run="run", base_dir=tmp_path / "other") as publisher,
        pytest.raises(BaseChanged, match="was made for another base checkpoint"),
    ):
        publisher.publish(changed(new, 2))
    with Publisher(source, run="run", base_dir=tmp_path / "base") as publisher:
        assert publisher.publish(changed(new, 2)).version == 2
    assert verify_source(source, base_dir=tmp_path / "base").faults == ()
    assert publish_delta(source, 3, []).name == "weight_v000003"
