"""Checkpoints that contradict themselves, are half-written, or change meanwhile."""

import json
import os
import resource
from itertools import count, islice
from pathlib import Path

import pytest
import torch

from hotswap.errors import UpdateRejected
from hotswap.testing.raw_safetensors import entry, pack, write_directory
from hotswap.types import Readable
from hotswap.weights.checkpoint import Checkpoint

GOOD = pack({"w": entry("F32", [2], 0, 8)}, bytes(8))
OTHER = pack({"v": entry("F32", [2], 0, 8)}, bytes(8))
S1, S2 = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
BOTH = {"w": S1, "v": S2}


def refused(directory: Path) -> str:
    """The message, once it is sure that nothing stays open."""
    before = os.listdir("/proc/self/fd")
    with pytest.raises(UpdateRejected) as caught:
        Checkpoint.open(directory)
    assert os.listdir("/proc/self/fd") == before
    return str(caught.value)


@pytest.mark.parametrize(
    ("files", "weight_map", "named"),
    [
        pytest.param({S1: GOOD}, BOTH, (S2, "No such file"), id="index names a missing shard"),
        pytest.param({S1: GOOD, S2: GOOD}, BOTH, (S2, "'v'"), id="shard lacks its tensor"),
        pytest.param({S1: GOOD, S2: OTHER[:-1]}, BOTH, (S2, "'v'", "truncated"), id="short shard"),
        pytest.param({S1: GOOD, S2: OTHER[:20]}, BOTH, (S2, "truncated"), id="cut in the header"),
        pytest.param({S1: GOOD, S2: b""}, BOTH, (S2, "0 bytes"), id="empty shard"),
        pytest.param({S1: GOOD, S2: pack({})}, BOTH, (S2, "0 tensors"), id="shard of no tensors"),
        pytest.param({S1: GOOD, f"{S2}.tmp": OTHER}, BOTH, (S2,), id="shard still named .tmp"),
        pytest.param({S1: GOOD}, None, ("1 of 2 shards",), id="no index and a shard missing"),
        pytest.param({}, None, ("no weights",), id="no weights"),
        pytest.param({"model.safetensors": pack({})}, None, ("0 tensors",), id="no tensors"),
        pytest.param({S1: GOOD}, {}, ("0 tensors",), id="index of no tensors"),
        pytest.param({S1: GOOD}, ["w"], ("weight_map",), id="weight_map is a list"),
        pytest.param({S1: GOOD}, {"w": 1}, ("'w'", "1"), id="weight_map to a number"),
        pytest.param({S1: GOOD}, {"w": "x.bin"}, ("'w'", "x.bin"), id="weight_map to a pickle"),
    ],
)
def test_contradictions_are_refused_by_name(
    tmp_path: Path, files: dict[str, bytes], weight_map: object, named: tuple[str, ...]
) -> None:
    message = refused(write_directory(tmp_path, files, weight_map=weight_map))
    assert all(part in message for part in named), message


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("", "not valid JSON"),
        ("[]", "a JSON list"),
        ('{"a": 1, "a": 2}', "'a' appears twice"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": "\\ud800"}', "surrogates not allowed"),
    ],
)
def test_config_has_to_be_one_object(tmp_path: Path, config: str, says: str) -> None:
    message = refused(write_directory(tmp_path, {"model.safetensors": GOOD}, config=config))
    assert message.startswith("config.json")
    assert says in message


def test_config_has_to_be_there(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(GOOD)
    told = refused(tmp_path)
    assert "config.json: cannot be read" in told
    assert "put the model's beside the weights" in told


def test_a_huge_json_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    directory = write_directory(tmp_path, {"model.safetensors": GOOD})
    os.truncate(directory / "config.json", 101 * 2**20)
    assert "wanted at most" in refused(directory)


@pytest.mark.parametrize("second", [OTHER, OTHER[:-1]])
def test_opening_reads_headers_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: bytes
) -> None:
    """A1: whether or not the last shard is bad, no byte of a tensor was read to find out."""
    directory = write_directory(tmp_path, {S1: GOOD, S2: second}, weight_map=BOTH)
    reads: list[tuple[str, int]] = []
    preadv = os.preadv

    def recorded(fd: int, buffers: list[memoryview], offset: int) -> int:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))
        reads.append((name, offset + sum(map(len, buffers))))
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", recorded)
    try:
        Checkpoint.open(directory).close()
    except UpdateRejected:
        assert second != OTHER
    ends = {name: max(end for other, end in reads if other == name) for name, _ in reads}
    assert (ends[S1], ends[S2]) == (len(GOOD) - 8, len(OTHER) - 8)


def file_tensor(checkpoint: Checkpoint) -> Readable:
    [[(_, payload)]] = checkpoint.buckets()
    assert isinstance(payload, Readable)
    return payload


def test_a_directory_that_vanishes_after_the_open_is_still_read(tmp_path: Path) -> None:
    payload = torch.tensor([1.0, 2.0]).numpy().tobytes()
    directory = write_directory(
        tmp_path / "v1", {"model.safetensors": pack({"w": entry("F32", [2], 0, 8)}, payload)}
    )
    out = torch.zeros(2)
    with Checkpoint.open(directory) as checkpoint:
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
        file_tensor(checkpoint).read_into(out)
    assert out.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("change", ["truncate", "overwrite", "append"])
def test_a_file_that_changes_after_the_open_is_an_error(tmp_path: Path, change: str) -> None:
    """A28: neither silently wrong bytes nor SIGBUS."""
    directory = write_directory(tmp_path, {"model.safetensors": GOOD})
    path = directory / "model.safetensors"
    os.utime(path, ns=(1, 1))
    with Checkpoint.open(directory) as checkpoint:
        with path.open("r+b") as file:
            if change == "truncate":
                file.truncate(len(GOOD) - 1)
            else:
                file.seek(0, os.SEEK_END if change == "append" else os.SEEK_SET)
                file.write(GOOD[:1])
        says = "became shorter" if change == "truncate" else "was written to"
        with pytest.raises(OSError, match=rf"tensor 'w': .*model\.safetensors .*{says}"):
            file_tensor(checkpoint).read_into(torch.zeros(2))


def test_a_file_renamed_over_is_not_seen(tmp_path: Path) -> None:
    old, new = (pack({"w": entry("F32", [2], 0, 8)}, bytes([n] * 8)) for n in (1, 2))
    directory = write_directory(tmp_path, {"model.safetensors": old, "next": new})
    out = torch.zeros(2)
    with Checkpoint.open(directory) as checkpoint:
        os.replace(directory / "next", directory / "model.safetensors")
        file_tensor(checkpoint).read_into(out)
    assert out.view(torch.uint8).tolist() == [1] * 8


def test_a_closed_checkpoint_delivers_nothing(tmp_path: Path) -> None:
    with Checkpoint.open(write_directory(tmp_path, {"model.safetensors": GOOD})) as checkpoint:
        payload = file_tensor(checkpoint)
    assert list(checkpoint.buckets()) == []
    # The descriptor's number may be another file's by now.
    with open(os.devnull, "rb"), pytest.raises(OSError, match=r"was closed already"):
        payload.read_into(torch.zeros(2))


def test_descriptors_are_flat_and_as_many_as_shards(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "good", {S1: GOOD, S2: OTHER}, weight_map=BOTH)
    broken = write_directory(tmp_path / "broken", {S1: GOOD, S2: OTHER[:-1]}, weight_map=BOTH)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(200):
        with Checkpoint.open(directory):
            assert len(os.listdir("/proc/self/fd")) == before + 2
        with pytest.raises(UpdateRejected):
            Checkpoint.open(broken)
    assert len(os.listdir("/proc/self/fd")) == before


def test_running_out_of_descriptors_is_refused_and_leaks_none(tmp_path: Path) -> None:
    names = [f"s{i}.safetensors" for i in range(20)]
    files = {name: pack({name: entry("U8", [1], 0, 1)}, b"x") for name in names}
    directory = write_directory(tmp_path, files, weight_map={name: name for name in names})
    used = set(map(int, os.listdir("/proc/self/fd")))
    allowed = next(islice((fd for fd in count() if fd not in used), 8, None))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, limits[1]))
    try:
        with pytest.raises(UpdateRejected, match="Too many open files"):
            Checkpoint.open(directory)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    with Checkpoint.open(directory) as checkpoint:
        assert len(checkpoint.manifest) == 20


def test_index_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    directory = write_directory(tmp_path, {S1: GOOD, S2: GOOD})
    text = f'{{"weight_map": {{"w": {json.dumps(S1)}, "w": {json.dumps(S2)}}}}}'
    (directory / "model.safetensors.index.json").write_text(text)
    assert "'w' appears twice" in refused(directory)


@pytest.mark.parametrize(
    ("name", "holds", "told"),
    [
        (
            "stream",
            "weight_v000012",
            "is no checkpoint but a source of published versions, up to 12",
        ),
        (
            "weight_v000003",
            "model.safetensors.index.json",
            "is one version of a stream, and has no",
        ),
    ],
)
def test_what_belongs_to_a_stream_says_so(name: str, holds: str, told: str, tmp_path: Path) -> None:
    (tmp_path / name / holds).mkdir(parents=True)
    with pytest.raises(UpdateRejected) as caught:
        Checkpoint.open(tmp_path / name)
    assert told in str(caught.value)
    assert "hotswap pull" in str(caught.value)
    assert not caught.value.retryable
