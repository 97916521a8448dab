"""A7, A8, A10, A24, A25, A29: checkpoints that are unusual, and right all the same (O1)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hotswap.controller import Controller
from hotswap.errors import UpdateRejected
from hotswap.testing.checkpoints import make_checkpoint
from hotswap.types import LoadMode, Scope, Update
from tests.process.checkpoint_edits import Tensors, edited, shard_names, tensors_of, write_index
from tests.process.evidence import Evidence, assert_equal
from tests.process.fresh import fresh
from tests.process.http_client import Client, text_of
from tests.process.in_process import load, serving

pytestmark = pytest.mark.process

HEAD, EMBED = "lm_head.weight", "model.embed_tokens.weight"
ATTENTION = "model.layers.0.self_attn"
MODES = ("staged", "direct")


async def assert_equals_fresh(client: Client, directory: Path) -> None:
    assert_equal(await Evidence.of(client), await fresh(directory))


def _embed_only(tensors: Tensors) -> None:
    assert HEAD not in tensors


def _head_only(tensors: Tensors) -> None:
    tensors[HEAD] = tensors.pop(EMBED)


def _both_equal(tensors: Tensors) -> None:
    tensors[HEAD] = tensors[EMBED].clone()


def _both_different(tensors: Tensors) -> None:
    tensors[HEAD] = tensors[EMBED] + 1


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("tied")
    return [make_checkpoint(root / f"{seed}", tied=True, seed=seed) for seed in (1, 2)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("edit", [_embed_only, _head_only, _both_equal])
async def test_a7_one_tied_model_however_it_is_written(
    tied: list[Path], tmp_path: Path, edit: Callable[[Tensors], None], mode: str
) -> None:
    # In shards, so that the two names may lie in different files.
    written = edited(tied[1], tmp_path / "b", edit, shards=3)
    loaded = load(tied[0])
    async with serving(loaded, load_mode=mode) as server:
        await server.client.update(written)

        await assert_equals_fresh(server.client, tied[1])
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight


@pytest.mark.parametrize("mode", MODES)
async def test_a7_two_values_for_one_tied_tensor_are_refused(
    tied: list[Path], tmp_path: Path, mode: str
) -> None:
    written = edited(tied[1], tmp_path / "b", _both_different, shards=3)
    async with serving(load(tied[0]), load_mode=mode) as server:
        before = await server.client.snapshot()
        status, reply = await server.client.post(
            "/update_weights_from_disk", model_path=str(written), weight_version="never"
        )

        assert (status, reply["success"]) == (400, False)
        assert HEAD in text_of(reply)
        assert EMBED in text_of(reply)
        assert await server.client.snapshot() == before
        await assert_equals_fresh(server.client, tied[0])


async def partial(controller: Controller, directory: Path, mode: str) -> Any:
    """What the wire does not carry yet: an update of some tensors."""
    update = Update(source=str(directory), scope=Scope.PARTIAL, mode=LoadMode(mode))
    return await controller.update(update)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [EMBED, HEAD])
async def test_a7_one_alias_alone_changes_the_one_storage(
    tied: list[Path], tmp_path: Path, name: str, mode: str
) -> None:
    new = tensors_of(tied[1])[EMBED]

    def keep_one(tensors: Tensors) -> None:
        tensors.clear()
        tensors[name] = new

    written = edited(tied[1], tmp_path / "part", keep_one)
    loaded = load(tied[0])
    async with serving(loaded, load_mode=mode) as server:
        before = await server.client.checksums()
        await partial(server.controller, written, mode)
        after = await server.client.checksums()

    weight = loaded.model.lm_head.weight
    assert weight is loaded.model.model.embed_tokens.weight
    assert torch.equal(weight[: new.shape[0]], new)
    assert {key for key in before if before[key] != after[key]} <= {EMBED, HEAD}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("part", ["q", "k", "v"])
async def test_a8_one_projection_alone_changes_its_rows_only(
    tmp_path: Path, part: str, mode: str
) -> None:
    """Grouped queries, with biases: two key heads for four query heads."""
    a, b = (make_checkpoint(tmp_path / f"{n}", arch="qwen2", seed=n) for n in (1, 2))
    new = tensors_of(b)
    wanted = [f"{ATTENTION}.{part}_proj.{kind}" for kind in ("weight", "bias")]

    def keep(tensors: Tensors) -> None:
        for name in set(tensors) - set(wanted):
            del tensors[name]

    loaded = load(a)
    attention = loaded.model.get_submodule(f"{ATTENTION}.qkv_proj")
    rows = {"q": slice(0, 64), "k": slice(64, 96), "v": slice(96, 128)}[part]
    async with serving(loaded, load_mode=mode) as server:
        before = await server.client.checksums()
        old = {name: value.clone() for name, value in attention.named_parameters()}
        await partial(server.controller, edited(b, tmp_path / "part", keep), mode)
        after = await server.client.checksums()

    changed = {f"{ATTENTION}.qkv_proj.{kind}" for kind in ("weight", "bias")}
    assert {name for name in before if before[name] != after[name]} == changed
    for kind, live in attention.named_parameters():
        expected = old[kind].clone()
        expected[rows] = new[f"{ATTENTION}.{part}_proj.{kind}"]
        assert torch.equal(live, expected)


@pytest.mark.parametrize("mode", MODES)
async def test_a8_fused_names_are_taken_too(tmp_path: Path, mode: str) -> None:
    """The reverse: the checkpoint is fused as the live model is."""
    a, b = (make_checkpoint(tmp_path / f"{n}", arch="qwen2", seed=n) for n in (1, 2))

    def fuse(tensors: Tensors) -> None:
        for fused, parts in (
            ("qkv_proj", "q_proj k_proj v_proj"),
            ("gate_up_proj", "gate_proj up_proj"),
        ):
            firsts = [name for name in tensors if f".{parts.split()[0]}." in name]
            for first in firsts:
                names = [first.replace(parts.split()[0], part) for part in parts.split()]
                joined = torch.cat([tensors.pop(name) for name in names])
                tensors[first.replace(parts.split()[0], fused)] = joined

    async with serving(load(a), load_mode=mode) as server:
        await server.client.update(edited(b, tmp_path / "fused", fuse))

        await assert_equals_fresh(server.client, b)


async def test_a6_an_unknown_name_in_a_partial_update_is_refused(tmp_path: Path, a: Path) -> None:
    unknown = edited(
        a, tmp_path / "part", lambda tensors: tensors.update({"x.weight": torch.ones(2)})
    )
    async with serving(load(a)) as server:
        before = await server.client.snapshot()
        with pytest.raises(UpdateRejected, match=r"x\.weight"):
            await partial(server.controller, unknown, "staged")

        assert await server.client.snapshot() == before


@pytest.mark.parametrize("mode", MODES)
async def test_a10_buffers_that_follow_from_the_configuration_stay(
    a: Path, b: Path, tmp_path: Path, mode: str
) -> None:
    """Old checkpoints carry rotary frequencies; these here are wrong ones."""
    names = [f"{ATTENTION}.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"]
    written = edited(
        b, tmp_path / "b", lambda tensors: tensors.update({name: torch.ones(8) for name in names})
    )
    async with serving(load(a), load_mode=mode) as server:
        before = (await server.client.checksums())["model.rotary_emb.inv_freq"]
        reply = await server.client.update(written)

        assert sorted(reply["unknown"]) == sorted(names)
        assert (await server.client.checksums())["model.rotary_emb.inv_freq"] == before
        await assert_equals_fresh(server.client, b)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("times", [3])
async def test_the_same_checkpoint_again_changes_nothing(
    a: Path, b: Path, times: int, mode: str
) -> None:
    async with serving(load(a), load_mode=mode) as server:
        for _ in range(times):
            await server.client.update(b)
            await assert_equals_fresh(server.client, b)


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    """Equal values, every second column of a wider storage."""
    wide = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1])
    wide[..., ::2] = tensor
    return wide[..., ::2]


def _offset(tensor: torch.Tensor) -> torch.Tensor:
    """Equal values, contiguous, behind others in a bigger storage."""
    big = torch.full((tensor.numel() + 7,), 3.0)
    big[7:] = tensor.flatten()
    return big[7:].view(tensor.shape)


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.t().contiguous().t() if tensor.dim() == 2 else tensor


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("view", [_strided, _offset, _transposed])
async def test_a24_views_of_other_storages_are_exact(
    a: Path, b: Path, tmp_path: Path, view: Callable[[torch.Tensor], torch.Tensor], mode: str
) -> None:
    """safetensors holds no views; a torch file does."""
    views = {name: view(tensor) for name, tensor in tensors_of(b).items()}
    assert any(not tensor.is_contiguous() or tensor.storage_offset() for tensor in views.values())
    written = edited(b, tmp_path / "b")
    (written / "model.safetensors").unlink()
    torch.save(views, written / "pytorch_model.bin")
    async with serving(load(a), load_mode=mode) as server:
        await server.client.update(written)

        await assert_equals_fresh(server.client, b)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("live", "sent"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.float16, torch.bfloat16),
    ],
    ids=str,
)
async def test_a25_floats_are_cast_as_torch_casts_them(
    a: Path, b: Path, tmp_path: Path, live: torch.dtype, sent: torch.dtype, mode: str
) -> None:
    def cast(tensors: Tensors) -> None:
        tensors.update({name: tensor.to(sent) for name, tensor in tensors.items()})

    written = edited(b, tmp_path / "b", cast)
    loaded = load(a, dtype=live)
    async with serving(loaded, load_mode=mode) as server:
        await server.client.update(written)

        wanted = tensors_of(written)
        for name in (HEAD, EMBED, "model.norm.weight", f"{ATTENTION}.o_proj.weight"):
            assert torch.equal(loaded.model.get_parameter(name), wanted[name].to(live))
        assert (await server.client.get("/model_info"))[1]["dtype"] == str(live)[6:]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tied", [False, True])
async def test_a25_padded_vocabulary_rows_stay_zero(tmp_path: Path, tied: bool, mode: str) -> None:
    a, b = (make_checkpoint(tmp_path / f"{n}", vocab_size=300, tied=tied, seed=n) for n in (1, 2))
    loaded = load(a)
    assert loaded.model.lm_head.weight.shape[0] == 320
    async with serving(loaded, load_mode=mode) as server:
        await server.client.update(b)

        await assert_equals_fresh(server.client, b)
        for weight in (loaded.model.lm_head.weight, loaded.model.model.embed_tokens.weight):
            assert not weight[300:].any()
            assert weight[:300].any(dim=1).all()
        # 320 rows would fit the live tensor, and are not what the model has.
        wide = make_checkpoint(tmp_path / "wide", vocab_size=320, tied=tied, seed=2)
        before = await server.client.snapshot()
        status, _ = await server.client.post("/update_weights_from_disk", model_path=str(wide))
        assert status == 400
        assert await server.client.snapshot() == before


@pytest.mark.parametrize("mode", MODES)
async def test_a29_only_the_index_says_where_a_tensor_comes_from(
    a: Path, b: Path, tmp_path: Path, mode: str
) -> None:
    written = edited(b, tmp_path / "b", shards=2)
    first, second = shard_names(2)
    tensors = tensors_of(written)
    index = {name: first if name in _names_in(written / first) else second for name in tensors}
    old = {name: tensor + 1 for name, tensor in tensors.items()}
    # The second shard also holds an old copy of what the index takes from the first ...
    moved = {name: old[name] for name, file in index.items() if file == first}
    kept = {name: tensors[name] for name, file in index.items() if file == second}
    save_file(moved | kept, written / second)
    # ... and a consolidated file of old weights lies beside them.
    save_file(old, written / "consolidated.safetensors")
    write_index(written, index)
    async with serving(load(a), load_mode=mode) as server:
        await server.client.update(written)

        await assert_equals_fresh(server.client, b)


@pytest.mark.parametrize("mode", MODES)
async def test_a29_an_older_save_beside_the_single_file_is_refused(
    a: Path, b: Path, tmp_path: Path, mode: str
) -> None:
    written = edited(b, tmp_path / "b")
    save_file(tensors_of(a), written / "consolidated.safetensors")
    async with serving(load(a), load_mode=mode) as server:
        before = await server.client.snapshot()
        status, body = await server.client.post(
            "/update_weights_from_disk", model_path=str(written)
        )
        assert (status, body["success"]) == (400, False)
        assert "in model.safetensors and in consolidated.safetensors" in body["message"]
        assert await server.client.snapshot() == before
        (written / "consolidated.safetensors").unlink()
        await server.client.update(written)

        await assert_equals_fresh(server.client, b)


def _names_in(file: Path) -> set[str]:
    return set(load_file(file))
