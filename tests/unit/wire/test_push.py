"""A payload through a controller, into live weights: A7, A8, A15, A24, A25, A27 for pushes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import anyio
import pytest
import torch

from hotswap.controller import Controller
from hotswap.errors import UpdateFailed, UpdateRejected
from hotswap.testing.module_engine import ModuleEngine
from hotswap.testing.tiny_modules import Q_ROWS, VOCAB, TinyModel, tiny_state, tiny_target
from hotswap.types import LoadMode, Placement, Scope, Update, UpdateReport
from hotswap.wire import (
    FLATTENED,
    PUSHED,
    PushStrategy,
    decode,
    flattened_bucket,
    named_tensors,
    payload_bytes,
    push_update,
)
from tests.unit.wire.conftest import own_segments

MODES = ("staged", "direct")
FORMATS = (FLATTENED, "direct")


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    """Neither descriptors nor segments, however a push ended."""
    torch.UntypedStorage._new_using_filename_cpu(8)  # the sender's socket stays
    before, segments = len(os.listdir("/proc/self/fd")), own_segments()
    yield
    assert own_segments() <= segments
    assert len(os.listdir("/proc/self/fd")) <= before + 3  # the event loop's own


class Server:
    """A controller on a tiny model, and a trainer that pushes to it."""

    def __init__(self, model: TinyModel, **engine: Any) -> None:
        self.model = model
        self.engine = ModuleEngine(tiny_target(model), **engine)
        self.controller = Controller(self.engine, strategies={PUSHED: PushStrategy()})

    async def push(
        self, tensors: Mapping[str, torch.Tensor], *, form: str = FLATTENED, **labels: Any
    ) -> UpdateReport:
        write = flattened_bucket if form == FLATTENED else named_tensors
        with write(list(tensors.items())) as text:
            sent = decode(payload_bytes(text), load_format=form)
            return await self.controller.update(push_update(sent, **labels))

    def sums(self) -> dict[str, str]:
        return self.engine.target.checksums()


def a_server(**model: Any) -> Server:
    return Server(TinyModel(**model))


def shuffled(tensors: Mapping[str, torch.Tensor], seed: int) -> list[str]:
    order = torch.randperm(len(tensors), generator=torch.Generator().manual_seed(seed)).tolist()
    return [list(tensors)[index] for index in order]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", FORMATS)
async def test_chunks_in_any_order_give_what_one_full_push_gives(form: str, mode: str) -> None:
    """A8 too: the parts of fused weights come one by one."""
    state = tiny_state(5)
    whole, chunked = a_server(), a_server()
    whole.model.get_buffer("inv_freq").copy_(chunked.model.get_buffer("inv_freq"))
    report = await whole.push(state, form=form, mode=LoadMode(mode), scope=Scope.FULL)
    assert report.missing == ()
    for name in shuffled(state, seed=3):
        report = await chunked.push({name: state[name]}, form=form, mode=LoadMode(mode))
        assert report.tensors_applied == 1
        assert report.load_mode == mode
    assert chunked.sums() == whole.sums()
    assert chunked.controller.stamp.update_count == len(state)


async def test_a_lone_q_changes_the_rows_of_q() -> None:
    server = a_server()
    before = server.model.layer.qkv_proj.weight.detach().clone()
    q = torch.randn(Q_ROWS, 6)
    with pytest.raises(UpdateRejected, match="missing"):
        await server.push({"layer.q_proj.weight": q}, scope=Scope.FULL)
    assert torch.equal(server.model.layer.qkv_proj.weight, before)
    await server.push({"layer.q_proj.weight": q})
    assert torch.equal(server.model.layer.qkv_proj.weight[:Q_ROWS], q)
    assert torch.equal(server.model.layer.qkv_proj.weight[Q_ROWS:], before[Q_ROWS:])


@pytest.mark.parametrize("names", [("embed.weight",), ("head.weight",),
                                   ("embed.weight", "head.weight")])  # fmt: skip
async def test_any_alias_of_a_tied_weight_will_do(names: tuple[str, ...]) -> None:
    server = a_server(tied=True)
    new = torch.randn(VOCAB, 6)
    await server.push(dict.fromkeys(names, new))
    assert torch.equal(server.model.embed.weight, new)
    assert server.model.head.weight is server.model.embed.weight


@pytest.mark.parametrize("mode", MODES)
async def test_aliases_that_contradict_each_other_change_nothing(mode: str) -> None:
    server = a_server(tied=True)
    before = server.sums()
    both = {"embed.weight": torch.zeros(VOCAB, 6), "head.weight": torch.ones(VOCAB, 6)}
    with pytest.raises(UpdateRejected):
        await server.push(both, mode=LoadMode(mode))
    assert server.sums() == before


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
async def test_floats_are_cast_as_torch_casts_them(dtype: torch.dtype, form: str) -> None:
    server = a_server()
    exact = torch.randn(VOCAB, 6, dtype=torch.float64) * 3
    await server.push({"embed.weight": exact.to(dtype)}, form=form)
    assert torch.equal(server.model.embed.weight, exact.to(dtype).to(torch.float32))


async def test_rounding_into_bfloat16_is_torchs() -> None:
    server = Server(TinyModel().to(torch.bfloat16))
    exact = torch.randn(VOCAB, 6)
    await server.push({"embed.weight": exact})
    assert torch.equal(server.model.embed.weight, exact.to(torch.bfloat16))


async def test_a_padded_vocabulary_keeps_its_rows_at_zero() -> None:
    server = a_server(padding=2)
    new = torch.randn(VOCAB, 6)
    await server.push({"embed.weight": new})
    assert torch.equal(server.model.embed.weight[:VOCAB], new)
    assert not server.model.embed.weight[VOCAB:].any()


WRONG: dict[str, tuple[str, torch.Tensor]] = {
    "another vocabulary": ("embed.weight", torch.zeros(VOCAB + 2, 6)),
    "a smaller vocabulary": ("embed.weight", torch.zeros(VOCAB - 1, 6)),
    "one dimension more": ("layer.q_proj.bias", torch.zeros(Q_ROWS, 1)),
    "one dimension less": ("layer.q_proj.weight", torch.zeros(Q_ROWS * 6)),
    "integers": ("embed.weight", torch.zeros(VOCAB, 6, dtype=torch.int32)),
    "floats for integers": ("steps", torch.tensor(1.0)),
    "no such name": ("layer.z_proj.weight", torch.zeros(3)),
    "one that is spread to any size": ("layer.q_proj.bias", torch.zeros(1).expand(2**20)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", WRONG)
async def test_what_does_not_fit_changes_nothing_and_no_version(case: str, mode: str) -> None:
    server = a_server()
    before, stamp = server.sums(), server.controller.stamp
    name, tensor = WRONG[case]
    good = {"layer.scale": torch.tensor(9.0)}
    with pytest.raises(UpdateRejected):
        await server.push(good | {name: tensor}, version="7", token_step=7, mode=LoadMode(mode))
    assert server.sums() == before
    assert server.controller.stamp == stamp
    report = await server.push(good, version="8", token_step=8, mode=LoadMode(mode))
    assert (report.stamp.version, report.stamp.token_step) == ("8", 8)
    assert server.model.layer.scale.item() == 9.0
    assert server.model.layer.derived.item() == 10.0


@pytest.mark.parametrize("form", FORMATS)
async def test_layouts_arrive_exactly(form: str) -> None:
    server = a_server()
    big = torch.randn(40, 40)
    tensors = {
        "embed.weight": big[:6, :VOCAB].t(),
        "head.weight": big[::3][:VOCAB, 1:7],
        "mean": big[5, ::10],
        "layer.k_proj.bias": big[0, 0].expand(4),
    }
    await server.push(tensors, form=form)
    assert torch.equal(server.model.embed.weight, tensors["embed.weight"])
    assert torch.equal(server.model.head.weight, tensors["head.weight"])
    assert torch.equal(server.model.get_buffer("mean"), tensors["mean"])
    assert torch.equal(server.model.layer.qkv_proj.bias[8:12], tensors["layer.k_proj.bias"])


async def test_a_write_that_fails_lets_everything_go() -> None:
    server = Server(TinyModel(), fails=lambda at: at == 1)
    with pytest.raises(UpdateFailed):
        await server.push(tiny_state(1), mode=LoadMode.DIRECT)
    assert server.controller.stamp.update_count == 0


@pytest.mark.parametrize("steps", range(6))
async def test_a_push_that_is_cancelled_lets_everything_go(steps: int) -> None:
    server = a_server()
    before = server.sums()
    with flattened_bucket(list(tiny_state(1).items())) as text:
        sent = decode(payload_bytes(text), load_format=FLATTENED)
        async with anyio.create_task_group() as group:
            group.start_soon(server.controller.update, push_update(sent))
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    done = server.controller.stamp.update_count
    assert (server.sums() == before) is (done == 0)


async def test_a_segment_that_is_gone_is_a_rejection() -> None:
    server = a_server()
    with flattened_bucket([("mean", torch.zeros(4))]) as text:
        sent = decode(payload_bytes(text), load_format=FLATTENED)
    with pytest.raises(UpdateRejected, match="cannot be read from /dev/shm"):
        await server.controller.update(push_update(sent))


async def test_an_update_without_a_payload_is_rejected() -> None:
    server = a_server()
    assert repr(PushStrategy()) == "<PushStrategy>"
    with pytest.raises(UpdateRejected, match="brings no tensors"):
        await server.controller.update(Update(source="x", strategy=PUSHED))


async def test_a_stage_says_how_much_it_has() -> None:
    with flattened_bucket([("mean", torch.zeros(4))]) as text:
        sent = decode(payload_bytes(text), load_format=FLATTENED)
        async with PushStrategy().open(push_update(sent), Placement()) as stage:
            assert repr(stage) == "<_PushedStage 1 tensors>"
            assert stage.manifest.names == ("mean",)
