"""A trainer that publishes, a module that is served, and the copy between them."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import anyio
import anyio.lowlevel
import torch
from hotswap_delta_pull import DeltaPullStrategy
from hotswap_disk import DiskStrategy
from safetensors.torch import save_file

from hotswap.controller import Controller
from hotswap.embed import ForwardGate, GatedEngine
from hotswap.pulls import Puller
from hotswap.seams import Plan
from hotswap.sparse import Base
from hotswap.stream import Keep, publish_delta
from hotswap.stream.encodings import Bytes
from hotswap.stream.recorded import RecordedBase
from hotswap.testing.tiny_modules import TinyModel, tiny_state, tiny_target
from hotswap.types import LoadMode, Scope, Update, UpdateReport, WeightStamp
from hotswap.weights.checkpoint import Checkpoint
from hotswap.weights.pieces import Job
from hotswap.weights.roots import Roots
from hotswap.weights.target import WeightTarget

__all__ = ["Served", "Trainer", "changed", "checksums", "state_of"]

State = dict[str, torch.Tensor]

_NUMBERS = itertools.count()


def state_of(seed: int, *, tied: bool = False, dtype: torch.dtype = torch.float32) -> State:
    """A whole checkpoint, its floats in ``dtype``."""
    state = tiny_state(seed, tied=tied)
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in state.items()}


def changed(state: Mapping[str, torch.Tensor], seed: int) -> State:
    """``state`` with an element or two of most tensors made others."""
    draw, after = torch.Generator().manual_seed(seed), State()
    for number, (name, tensor) in enumerate(state.items()):
        new = tensor.clone()
        if (number + seed) % 3:
            flat = new.view(-1)
            at = torch.randint(len(flat), (1 + len(flat) // 30,), generator=draw)
            flat[at] = (flat[at] * -1.5 + 1).to(new.dtype)
        after[name] = new
    return after


def checksums(target: WeightTarget) -> dict[str, str]:
    """Of everything that a checkpoint fills."""
    return {name: sum_ for name, sum_ in target.checksums().items() if name != "inv_freq"}


def load(target: WeightTarget, directory: Path) -> None:
    """All of a checkpoint."""
    with Checkpoint.open(directory) as checkpoint:
        plan = target.plan(checkpoint.manifest, Scope.FULL)
        for bucket in checkpoint.buckets():
            target.write(plan, bucket)
    target.finish()


class Trainer:
    """Publishes versions below ``source``, on a checkpoint at ``base``."""

    def __init__(self, folder: Path, state: State, *, name: str = "source") -> None:
        self.base = folder / "base"
        self.source = folder / name
        self.states = [state]
        if not self.base.exists():
            self.write(self.base, state)

    def write(self, directory: Path, state: State) -> Path:
        """A whole checkpoint there."""
        directory.mkdir(parents=True)
        (directory / "config.json").write_text("{}")
        save_file(state, directory / "model.safetensors")
        return directory

    def publish(self, new: State | None = None, *, encoding: str = "xor") -> int:
        """The next version; its number."""
        old, version = self.states[-1], len(self.states)
        new = changed(old, version) if new is None else new
        widths = {name: tensor.element_size() for name, tensor in new.items()}
        changes = [(name, _bytes(old[name]), _bytes(new[name])) for name in sorted(new)]
        publish_delta(
            self.source, version, [changes[::2], changes[1::2]], encoding=encoding, widths=widths
        )
        self.states.append(new)
        return version


def _bytes(tensor: torch.Tensor) -> Bytes:
    content: Bytes = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return content


class Engine(GatedEngine):
    """Fails when it is told to: at a patch, ``done`` of its jobs done, or at a commit.

    ``looked`` is awaited after each look.
    """

    def __init__(self, target: WeightTarget, *, gate: ForwardGate) -> None:
        super().__init__(target, gate=gate)
        self.origin: Base | None = None
        self.fails = list[str]()
        self.done = 1
        self.looked: Callable[[], Awaitable[object]] = anyio.lowlevel.checkpoint

    async def look(self, job: Job) -> None:
        await super().look(job)
        await self.looked()

    async def patch(self, plan: Plan | None, jobs: Sequence[Job]) -> None:
        if self.fails[:1] == ["patch"]:
            self.fails.pop(0)
            await super().patch(plan, jobs[: self.done])
            raise RuntimeError("injected at a patch")
        await super().patch(plan, jobs)

    async def commit(self, stamp: WeightStamp) -> None:
        if self.fails[:1] == ["commit"]:
            self.fails.pop(0)
            raise RuntimeError("injected at a commit")
        await super().commit(stamp)


class Served:
    """A module behind a controller, and what pulls for it. Use it as ``async with``.

    ``boot``: it has been loaded from the trainer's base. ``keep`` is how it pulls.
    """

    def __init__(
        self,
        trainer: Trainer,
        folder: Path,
        model: TinyModel | None = None,
        *,
        boot: bool = False,
        keep: Keep = Keep.FILES,
    ) -> None:
        self.trainer = trainer
        self.local = folder / "local"
        self.copies = folder / "copies"
        self.copies.mkdir(exist_ok=True)
        self.model = model or TinyModel()
        self.target = tiny_target(self.model)
        self.gate = ForwardGate()
        self.engine = Engine(self.target, gate=self.gate)
        base = RecordedBase.of(trainer.base)
        self.puller = Puller(base, keep=keep)
        if boot:
            load(self.target, trainer.base)
            self.engine.origin = Base(path=str(base.path), digest=str(base.digest))
        pulls = DeltaPullStrategy(
            Puller(RecordedBase.of(trainer.base), keep=keep), roots=Roots.of([self.copies])
        )
        for puller in (self.puller, pulls.puller):
            puller._compactor.stop()  # a log stays, however long a test takes
        self.controller = Controller(
            self.engine, strategies={"disk": DiskStrategy(), "delta-pull": pulls}
        )

    async def __aenter__(self) -> Served:
        await self.controller.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.controller.close()

    async def pull(self, version: int, *, source: Path | None = None) -> None:
        await self.puller.pull(str(self.local), str(source or self.trainer.source), version)

    async def load(
        self,
        source: Path | None = None,
        *,
        strategy: str = "disk",
        version: int | None = None,
        mode: LoadMode = LoadMode.STAGED,
        scope: Scope = Scope.FULL,
    ) -> UpdateReport:
        """The update that follows."""
        return await self.controller.update(
            Update(
                source=str(source or self.local),
                strategy=strategy,
                version=None if version is None else str(version),
                mode=mode,
                scope=scope,
            )
        )

    async def step(self, mode: LoadMode = LoadMode.STAGED) -> UpdateReport:
        """Publish, pull and load the next version."""
        version = self.trainer.publish()
        await self.pull(version)
        return await self.load(version=version, mode=mode)

    def fresh(self, state: State) -> dict[str, str]:
        """What a module shows that never had any other weights."""
        head = self.model.head.weight
        fresh = TinyModel(tied=head is self.model.embed.weight, padding=len(head) - 11)
        fresh.to(head.dtype)
        target = tiny_target(fresh)
        folder = self.trainer.base.with_name(f"whole-{next(_NUMBERS)}")
        load(target, self.trainer.write(folder, state))
        return checksums(target)

    def assert_serves(self, state: State) -> None:
        """The live weights are those of ``state``, to the bit."""
        assert checksums(self.target) == self.fresh(state)
        assert self.controller.machine.state == "serving"
