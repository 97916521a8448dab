"""pytorch_model.bin and *.pt: loaded as plain data into memory, or refused."""

import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from hotswap.errors import UpdateRejected
from hotswap.weights.checkpoint import Checkpoint

STATE = {"w": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3), "b": torch.tensor(True)}


def saved(directory: Path, content: object, name: str = "pytorch_model.bin") -> Path:
    (directory / "config.json").write_text("{}")
    torch.save(content, directory / name)
    return directory


def load(directory: Path) -> dict[str, torch.Tensor]:
    with Checkpoint.open(directory) as checkpoint:
        got = {name: payload for bucket in checkpoint.buckets() for name, payload in bucket}
        assert checkpoint.manifest.names == tuple(got)
    tensors = {n: p for n, p in got.items() if isinstance(p, torch.Tensor)}
    assert tensors.keys() == got.keys()
    return tensors


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pt"])
@pytest.mark.parametrize("wrap", [None, "model", "state_dict"])
def test_state_dicts_are_exact(tmp_path: Path, name: str, wrap: str | None) -> None:
    content = STATE if wrap is None else {wrap: STATE, "epoch": 3, "optimizer": {"lr": 0.1}}
    got = load(saved(tmp_path, content, name))
    assert got.keys() == STATE.keys()
    for key, tensor in STATE.items():
        assert got[key].dtype == tensor.dtype
        assert torch.equal(got[key], tensor)


def test_the_old_format_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    path = tmp_path / "pytorch_model.bin"
    torch.save(STATE, path, _use_new_zipfile_serialization=False)
    assert not zipfile.is_zipfile(path)
    assert torch.equal(load(tmp_path)["w"], STATE["w"])


def test_parameters_lose_their_gradient(tmp_path: Path) -> None:
    got = load(saved(tmp_path, {"w": torch.nn.Parameter(torch.ones(2))}))
    assert not got["w"].requires_grad


def test_shards_follow_their_index(tmp_path: Path) -> None:
    saved(tmp_path, {"w": torch.ones(1), "v": torch.zeros(1)}, "s1.bin")
    saved(tmp_path, {"v": torch.ones(1), "w": torch.zeros(1)}, "s2.bin")
    index = {"weight_map": {"w": "s1.bin", "v": "s2.bin"}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert {name: tensor.item() for name, tensor in load(tmp_path).items()} == {"w": 1, "v": 1}


@pytest.mark.parametrize("wrap", [None, "model", "state_dict"])
def test_another_file_with_a_tensor_of_the_single_one_is_refused(
    tmp_path: Path, wrap: str | None
) -> None:
    """A29, as for safetensors: no index, and the same name in several files."""
    saved(tmp_path, STATE)
    rival = {"b": torch.tensor(False)}
    saved(tmp_path, rival if wrap is None else {wrap: rival, "epoch": 3}, "consolidated.00.pt")
    named = r"'b' is in pytorch_model.bin and in consolidated.00.pt, and no index"
    with pytest.raises(UpdateRejected, match=named):
        Checkpoint.open(tmp_path)


def test_what_lies_beside_the_single_file_and_is_no_rival(tmp_path: Path) -> None:
    """An optimizer, a scheduler, another adapter; and what nobody can look into."""
    saved(tmp_path, STATE)
    moments = {0: {"exp_avg": torch.ones(2, 3)}}
    saved(tmp_path, {"state": moments, "param_groups": [{"params": [0], "lr": 1.0}]}, "optim.pt")
    saved(tmp_path, {"adapter": torch.ones(2)}, "adapter.pt")
    saved(tmp_path, [1, 2], "list.pt")
    torch.save(STATE, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "junk.pt").write_bytes(b"PK\x03\x04 and no more")
    (tmp_path / "folder.pt").mkdir()
    got = load(tmp_path)
    assert got.keys() == STATE.keys()
    assert torch.equal(got["w"], STATE["w"])


def test_nothing_of_what_lies_beside_it_runs(tmp_path: Path) -> None:
    saved(tmp_path, STATE)
    mark = tmp_path / "ran"
    with zipfile.ZipFile(tmp_path / "evil.pt", "w") as archive:
        archive.writestr("evil/data.pkl", pickle.dumps({"w": Exploit(mark)}))
        archive.writestr("evil/version", "3")
    assert load(tmp_path).keys() == STATE.keys()
    assert not mark.exists()


def test_several_pt_files_are_united_or_refused(tmp_path: Path) -> None:
    saved(tmp_path, {"w": torch.ones(1)}, "a.pt")
    saved(tmp_path, {"v": torch.ones(1)}, "b.pt")
    assert load(tmp_path).keys() == {"w", "v"}
    saved(tmp_path, {"v": torch.ones(1)}, "c.pt")
    with pytest.raises(UpdateRejected, match=r"'v' is in b.pt and in c.pt"):
        Checkpoint.open(tmp_path)


def test_the_file_may_vanish_and_nothing_is_mapped(tmp_path: Path) -> None:
    directory = saved(tmp_path, STATE)
    with Checkpoint.open(directory) as checkpoint:
        (directory / "pytorch_model.bin").unlink()
        assert "pytorch_model.bin" not in Path("/proc/self/maps").read_text()
        payloads = dict(item for bucket in checkpoint.buckets() for item in bucket)
        assert isinstance(payloads["w"], torch.Tensor)
        assert torch.equal(payloads["w"], STATE["w"])


class Exploit:
    """Runs a command when a plain unpickler meets it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("plain_pickle", [False, True])
def test_pickles_that_run_code_are_refused_before_they_do(
    tmp_path: Path, plain_pickle: bool
) -> None:
    mark = tmp_path / "ran"
    directory = saved(tmp_path, {"w": Exploit(mark)})
    if plain_pickle:
        (directory / "pytorch_model.bin").write_bytes(pickle.dumps({"w": Exploit(mark)}))
    with pytest.raises(UpdateRejected, match=r"pytorch_model.bin: torch.load.*refused it"):
        Checkpoint.open(directory)
    assert not mark.exists()


BAD: dict[str, tuple[object, str]] = {
    "a list": ([torch.ones(1)], "holds a list"),
    "a tensor": (torch.ones(1), "holds a Tensor"),
    "nothing": ({}, "0 tensors"),
    "nothing inside": ({"model": {}}, "0 tensors"),
    "numbers": ({"w": 1.5}, "'w' is a float"),
    "numbered": ({1: torch.ones(1)}, "entry 1"),
    "an optimizer": ({"state": {}, "param_groups": []}, "'state' is a dict"),
    "two wrappers": (
        {"model": {"w": torch.ones(1)}, "state_dict": {"w": torch.zeros(1)}},
        "'model', 'state_dict'",
    ),
    "a wrapper beside tensors": (
        {"model": {"w": torch.ones(1)}, "v": torch.ones(1)},
        "'model' and tensors beside",
    ),
    "sparse": ({"w": torch.eye(2).to_sparse()}, "'w' is torch.sparse_coo"),
    "meta": ({"w": torch.empty(2, device="meta")}, "'w' is torch.strided on meta"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_state_dict_is_refused(tmp_path: Path, case: str) -> None:
    content, says = BAD[case]
    before = os.listdir("/proc/self/fd")
    with pytest.raises(UpdateRejected) as caught:
        Checkpoint.open(saved(tmp_path, content))
    assert says in str(caught.value)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_damaged_files_are_refused(tmp_path: Path, keep: int) -> None:
    directory = saved(tmp_path, STATE)
    path = directory / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UpdateRejected, match=r"pytorch_model.bin: torch.load"):
        Checkpoint.open(directory)
