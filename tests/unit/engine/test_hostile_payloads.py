"""Payloads that end with what is no ``Exception``, on the engine's thread and beside it: an
update that failed, typed, and an engine that goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import product

import pytest
import torch
from safetensors.torch import load_file

from hotswap.controller import Controller
from hotswap.embed.engine import GatedEngine
from hotswap.embed.gate import ForwardGate
from hotswap.engine import EmbeddedEngine
from hotswap.errors import UpdateFailed, UpdateRejected
from hotswap.state import State
from hotswap.testing.endings import ENDINGS
from hotswap.testing.tiny_modules import TinyModel, tiny_state, tiny_target
from hotswap.transaction import Transaction
from hotswap.types import Bucket, LoadMode, Manifest, Placement, Scope, TensorSpec, Update
from hotswap.weights.pieces import spec_of
from tests.unit.engine.conftest import Make

PLACES = ("read_into", "spec", "name", "length")
RAISED: dict[str, Callable[[], BaseException]] = {**ENDINGS, "StopIteration": StopIteration}


class Hostile:
    """Delivers ``tensor``; raises in the place that it is told."""

    def __init__(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        self._spec, self._tensor = spec, tensor
        self.place = self.ending = ""

    def act(self, place: str) -> None:
        if place == self.place:
            raise RAISED[self.ending]()

    @property
    def spec(self) -> TensorSpec:
        self.act("spec")
        return self._spec

    def read_into(self, out: torch.Tensor) -> None:
        self.act("read_into")
        out.copy_(self._tensor)


class Name(str):
    """A name that raises when it is looked up."""

    __slots__ = ("payload",)
    payload: Hostile

    def __hash__(self) -> int:
        self.payload.act("name")
        return super().__hash__()


class Pairs(list[tuple[str, Hostile]]):
    """A bucket that raises when it is read."""

    def __iter__(self) -> Iterator[tuple[str, Hostile]]:
        for _, payload in list.__iter__(self):
            payload.act("length")
        return list.__iter__(self)


Tensors = Mapping[str, torch.Tensor]


class Stage:
    """One tensor a bucket; the fourth is hostile."""

    def __init__(self, tensors: Tensors, place: str, ending: str) -> None:
        self.manifest = Manifest.of(spec_of(*item) for item in tensors.items())
        self.payloads = {name: Hostile(spec_of(name, it), it) for name, it in tensors.items()}
        hostile = list(self.payloads.values())[3]
        hostile.place, hostile.ending = place, ending

    def buckets(self) -> Iterator[Bucket]:
        for name, payload in self.payloads.items():
            said = Name(name)
            said.payload = payload
            yield Pairs([(said, payload)])


class Strategy:
    """Delivers the tensors that an update names."""

    def __init__(self, sources: Mapping[str, Tensors]) -> None:
        self.sources = sources
        self.place = self.ending = ""

    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        yield Stage(self.sources[update.source], self.place, self.ending)


Running = AbstractAsyncContextManager[tuple[EmbeddedEngine | GatedEngine, Strategy]]


@asynccontextmanager
async def on_a_thread_of_its_own(
    checkpoint: Make,
) -> AsyncIterator[tuple[EmbeddedEngine, Strategy]]:
    directories = checkpoint(arch="qwen3"), checkpoint(arch="qwen3", seed=1)
    tensors = [load_file(one / "model.safetensors") for one in directories]
    async with EmbeddedEngine.from_directory(directories[0], device="cpu") as engine:
        yield engine, Strategy(dict(zip("AB", tensors, strict=True)))


@asynccontextmanager
async def behind_a_gate(checkpoint: Make) -> AsyncIterator[tuple[GatedEngine, Strategy]]:
    engine = GatedEngine(tiny_target(TinyModel()), gate=ForwardGate())
    yield engine, Strategy({"A": tiny_state(1), "B": tiny_state(2)})


@pytest.mark.parametrize("mode", LoadMode)
@pytest.mark.parametrize("running", [on_a_thread_of_its_own, behind_a_gate])
async def test_a_payload_that_ends_in_any_way_has_failed_and_nothing_else_has(
    running: Callable[[Make], Running], mode: LoadMode, checkpoint: Make
) -> None:
    async with (
        running(checkpoint) as (engine, strategy),
        Controller(engine, strategies={"toy": strategy}) as controller,
    ):

        async def update(source: str, how: LoadMode = mode) -> None:
            await controller.update(Update(source=source, strategy="toy", mode=how))

        await update("A")
        whole = await engine.checksums()
        for place, ending in product(PLACES, RAISED):
            strategy.place, strategy.ending = place, ending
            failed = UpdateFailed if mode is LoadMode.DIRECT else UpdateRejected
            with pytest.raises(failed, match=ending):
                await update("B")
            torn = mode is LoadMode.DIRECT
            assert controller.machine.state is (State.INVALID if torn else State.SERVING)
            assert (await engine.checksums() != whole) is torn
            strategy.place = ""
            await update("A")
            assert await engine.checksums() == whole
            assert controller.machine.state is State.SERVING


async def test_the_first_payload_rejects_a_direct_update_too(checkpoint: Make) -> None:
    """Where nothing has been written, and it is looked at before anything would be."""
    async with behind_a_gate(checkpoint) as (engine, strategy):
        name, tensor = next(iter(strategy.sources["A"].items()))
        for place, ending in product(PLACES[1:], RAISED):
            payload = Hostile(spec_of(name, tensor), tensor)
            plan = engine.plan(Manifest.of([payload.spec]), Scope.PARTIAL)
            said = Name(name)
            said.payload = payload
            async with Transaction(engine, plan, mode=LoadMode.DIRECT) as transaction:
                payload.place, payload.ending = place, ending
                with pytest.raises(UpdateRejected, match=ending):
                    await transaction.write(Pairs([(said, payload)]))
                assert not transaction.touched
