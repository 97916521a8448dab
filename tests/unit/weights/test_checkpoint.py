"""What a good checkpoint delivers: every byte, by name, from the right file."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hotswap.errors import UpdateRejected
from hotswap.types import Payload, Readable
from hotswap.weights.checkpoint import Checkpoint
from hotswap.weights.pieces import PieceReadable
from hotswap.weights.safetensors_header import DTYPES

Tensors = dict[str, torch.Tensor]


def save(
    directory: Path, files: dict[str, Tensors], *, index: dict[str, str] | None = None
) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "llama"}))
    for name, tensors in files.items():
        save_file(tensors, directory / name)
    if index is not None:
        text = json.dumps({"metadata": {}, "weight_map": index})
        (directory / "model.safetensors.index.json").write_text(text)
    return directory


def materialise(payload: Payload) -> torch.Tensor:
    if isinstance(payload, torch.Tensor):
        return payload
    out = torch.empty(payload.spec.shape, dtype=payload.spec.dtype)
    payload.read_into(out)
    return out


def load(directory: Path) -> Tensors:
    with Checkpoint.open(directory) as checkpoint:
        return {
            name: materialise(payload)
            for bucket in checkpoint.buckets()
            for name, payload in bucket
        }


def raw(tensor: torch.Tensor) -> list[int]:
    values: list[int] = tensor.reshape(-1).view(torch.uint8).tolist()
    return values


@contextmanager
def fds_return() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before


def test_single_file_with_every_dtype_is_exact(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors: Tensors = {}
    for name, dtype in DTYPES.items():
        count = 3 * dtype.itemsize
        noise = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
        tensors[name] = (noise % 2).bool() if dtype is torch.bool else noise.view(dtype)
    got = load(save(tmp_path, {"model.safetensors": tensors}))
    assert got.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (got[name].dtype, got[name].shape) == (tensor.dtype, tensor.shape)
        assert raw(got[name]) == raw(tensor)


def test_odd_shapes_and_unaligned_offsets_are_exact(tmp_path: Path) -> None:
    header = {
        "odd": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "scalar": {"dtype": "F32", "shape": [], "data_offsets": [3, 7]},
        "empty": {"dtype": "BF16", "shape": [0, 7], "data_offsets": [7, 7]},
        "matrix": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [7, 19]},
    }
    text = json.dumps(header).encode()
    payload = bytes(range(19))
    directory = save(tmp_path, {})
    (directory / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + payload)
    got = load(directory)
    assert {name: list(tensor.shape) for name, tensor in got.items()} == {
        "odd": [3],
        "scalar": [],
        "empty": [0, 7],
        "matrix": [2, 3],
    }
    assert raw(got["odd"]) == list(payload[:3])
    assert raw(got["scalar"]) == list(payload[3:7])
    assert raw(got["matrix"]) == list(payload[7:])


@pytest.mark.parametrize("at_once", [2**40, 10_000_019, 1])
def test_reads_of_any_length_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """A system call asks for 16 MiB at most, and may deliver less than was asked for."""
    big = torch.arange(10 * 2**20 + 1 if at_once > 1 else 20, dtype=torch.int32)
    directory = save(tmp_path, {"model.safetensors": {"first": torch.ones(3), "big": big}})
    asked: list[int] = []
    preadv = os.preadv

    def short(fd: int, buffers: list[memoryview], offset: int) -> int:
        asked.append(sum(map(len, buffers)))
        return preadv(fd, [buffers[0][:at_once]], offset)

    monkeypatch.setattr(os, "preadv", short)
    assert torch.equal(load(directory)["big"], big)
    assert max(asked) <= 16 * 2**20
    assert at_once == 1 or max(asked) == 16 * 2**20


def test_manifest_names_specs_and_config_before_any_read(tmp_path: Path) -> None:
    directory = save(tmp_path, {"model.safetensors": {"w": torch.zeros(2, 3).bfloat16()}})
    with Checkpoint.open(directory) as checkpoint:
        assert checkpoint.manifest.names == ("w",)
        assert str(checkpoint.manifest["w"]) == "w [2, 3] bfloat16"
        assert checkpoint.manifest.config == {"model_type": "llama"}
        assert repr(checkpoint) == f"<Checkpoint {directory} 1 tensors>"
        [[(_, payload)]] = checkpoint.buckets()
        assert isinstance(payload, Readable)
        assert repr(payload) == "<FileTensor w [2, 3] bfloat16 in model.safetensors>"


def test_buckets_start_afresh_and_cover_the_manifest(tmp_path: Path) -> None:
    tensors = {f"w{i}": torch.full((2,), float(i)) for i in range(5)}
    with Checkpoint.open(save(tmp_path, {"model.safetensors": tensors})) as checkpoint:
        rounds = [[name for bucket in checkpoint.buckets() for name, _ in bucket] for _ in range(2)]
    assert rounds[0] == rounds[1] == list(checkpoint.manifest.names)


def test_buckets_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotswap.weights.checkpoint._BUCKET_BYTES", 8)
    tensors = {f"w{i}": torch.zeros(1) for i in range(5)}
    with Checkpoint.open(save(tmp_path, {"model.safetensors": tensors})) as checkpoint:
        assert [len(bucket) for bucket in checkpoint.buckets()] == [2, 2, 1]


def test_only_the_index_decides(tmp_path: Path) -> None:
    """A29: s2 and a consolidated file hold old copies of w."""
    old, new = torch.zeros(2), torch.ones(2)
    directory = save(
        tmp_path,
        {
            "s1.safetensors": {"w": new, "unassigned": old.clone()},
            "s2.safetensors": {"w": old, "v": new},
            "consolidated.safetensors": {"w": old, "v": old.clone()},
        },
        index={"w": "s1.safetensors", "v": "s2.safetensors"},
    )
    got = load(directory)
    assert got.keys() == {"w", "v"}
    assert torch.equal(got["w"], new)
    assert torch.equal(got["v"], new)


@pytest.mark.parametrize("single", ["model.safetensors", "pytorch_model.bin"])
def test_a_single_file_beside_an_index_of_others_is_refused(tmp_path: Path, single: str) -> None:
    """A trainer saved again as one file (or as shards): one of the two is a leftover."""
    shard = "shard" + Path(single).suffix
    write = save_file if single.endswith(".safetensors") else torch.save
    directory = save(tmp_path, {})
    for name, value in ((single, 1.0), (shard, 0.0)):
        write({"w": torch.tensor([value])}, directory / name)
    index = directory / f"{single}.index.json"
    index.write_text(json.dumps({"weight_map": {"w": shard}}))
    with pytest.raises(UpdateRejected, match=f"{single} and {index.name}.*remove the older"):
        Checkpoint.open(directory)
    index.write_text(json.dumps({"weight_map": {"w": single}}))
    assert load(directory)["w"].item() == 1.0


def test_files_that_the_index_ignores_are_not_opened(tmp_path: Path) -> None:
    directory = save(
        tmp_path, {"s1.safetensors": {"w": torch.ones(2)}}, index={"w": "s1.safetensors"}
    )
    (directory / "junk.safetensors").write_bytes(b"not a safetensors file")
    assert load(directory).keys() == {"w"}


def test_without_an_index_files_are_united(tmp_path: Path) -> None:
    directory = save(
        tmp_path,
        {"a.safetensors": {"w": torch.ones(2)}, "b.safetensors": {"v": torch.zeros(2)}},
    )
    assert load(directory).keys() == {"w", "v"}


def test_without_an_index_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    directory = save(
        tmp_path, {"a.safetensors": {"w": torch.ones(2)}, "b.safetensors": {"w": torch.zeros(2)}}
    )
    with (
        fds_return(),
        pytest.raises(UpdateRejected, match=r"'w' is in a.safetensors and in b.safetensors"),
    ):
        Checkpoint.open(directory)


def test_the_order_of_preference(tmp_path: Path) -> None:
    directory = save(tmp_path, {})
    weights = {float(i): {"w": torch.tensor([float(i)])} for i in range(1, 6)}
    torch.save(weights[1.0], directory / "consolidated.pt")
    assert load(directory)["w"].item() == 1.0
    (directory / "consolidated.pt").unlink()
    torch.save(weights[2.0], directory / "pytorch_model.bin")
    torch.save({"v": weights[1.0]["w"]}, directory / "other.pt")
    assert load(directory)["w"].item() == 2.0
    (directory / "pytorch_model.bin").unlink()
    torch.save(weights[3.0], directory / "shard.bin")
    index = json.dumps({"weight_map": {"w": "shard.bin"}})
    (directory / "pytorch_model.bin.index.json").write_text(index)
    assert load(directory)["w"].item() == 3.0
    save_file(weights[4.0], directory / "other.safetensors")
    assert load(directory)["w"].item() == 4.0
    (directory / "other.safetensors").unlink()
    save_file(weights[5.0], directory / "model.safetensors")
    assert load(directory)["w"].item() == 5.0


def test_another_file_with_a_tensor_of_the_single_one_is_refused(tmp_path: Path) -> None:
    """A29: no index, and the same name in several files."""
    old, new = torch.zeros(2), torch.ones(2)
    directory = save(
        tmp_path,
        {"model.safetensors": {"v": new, "w": new.clone()}, "model-1.safetensors": {"w": old}},
    )
    named = r"'w' is in model.safetensors and in model-1.safetensors, and no index"
    with fds_return(), pytest.raises(UpdateRejected, match=named):
        Checkpoint.open(directory)
    # Tensors of other names are no contradiction, and are not read.
    save_file({"adapter": old}, directory / "model-1.safetensors")
    assert load(directory).keys() == {"v", "w"}


def test_what_is_no_safetensors_beside_the_single_file_is_nobodys_rival(tmp_path: Path) -> None:
    directory = save(tmp_path, {"model.safetensors": {"w": torch.ones(2)}})
    (directory / "junk.safetensors").write_bytes(b"not a safetensors file")
    (directory / "folder.safetensors").mkdir()
    (directory / "gone.safetensors").symlink_to(directory / "nowhere")
    with fds_return():
        assert load(directory).keys() == {"w"}


def test_a_file_tensor_refuses_memory_that_does_not_fit(tmp_path: Path) -> None:
    directory = save(tmp_path, {"model.safetensors": {"w": torch.zeros(2, 3)}})
    wrong = {
        "shape": torch.empty(3, 2),
        "dtype": torch.empty(2, 3, dtype=torch.float64),
        "strides": torch.empty(3, 2).t(),
        "device": torch.empty(2, 3, device="meta"),
    }
    with Checkpoint.open(directory) as checkpoint:
        [[(_, payload)]] = checkpoint.buckets()
        assert isinstance(payload, Readable)
        for out in wrong.values():
            with pytest.raises(ValueError, match=r"w \[2, 3\] float32 cannot be read (from|into)"):
                payload.read_into(out)


def test_a_parameter_and_a_slice_are_filled_in_place(tmp_path: Path) -> None:
    directory = save(tmp_path, {"model.safetensors": {"w": torch.arange(6.0).reshape(2, 3)}})
    parameter = torch.nn.Parameter(torch.zeros(2, 3))
    fused = torch.zeros(4, 3)
    with Checkpoint.open(directory) as checkpoint:
        [[(_, payload)]] = checkpoint.buckets()
        assert isinstance(payload, Readable)
        payload.read_into(parameter)
        payload.read_into(fused[1:3])
    assert torch.equal(parameter.detach(), torch.arange(6.0).reshape(2, 3))
    assert fused.tolist() == [[0, 0, 0], [0, 1, 2], [3, 4, 5], [0, 0, 0]]


def test_a_piece_is_a_run_of_elements_and_stays_within_the_tensor(tmp_path: Path) -> None:
    values = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    directory = save(tmp_path, {"model.safetensors": {"a": torch.ones(5), "w": values}})
    with Checkpoint.open(directory) as checkpoint:
        payload = dict(item for bucket in checkpoint.buckets() for item in bucket)["w"]
        assert isinstance(payload, PieceReadable)
        out = torch.zeros(12, dtype=torch.bfloat16)
        for start in (8, 0, 4):
            payload.read_piece(out[start : start + 4], start)
        assert torch.equal(out, values.view(-1))
        for start in (-1, 9):
            with pytest.raises(ValueError, match=f"from element {start}"):
                payload.read_piece(torch.empty(4, dtype=torch.bfloat16), start)
        odd_stride = torch.empty(2, 7, dtype=torch.bfloat16)[:1, 0]
        payload.read_piece(odd_stride, 11)
        assert odd_stride.item() == 11
