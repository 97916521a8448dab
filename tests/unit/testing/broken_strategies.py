"""Load strategies with one fault each, and the one test of the suite that has to find it."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import torch

from hotswap.seams import LoadStrategy, Stage
from hotswap.testing.delivered import dense
from hotswap.types import Bucket, Manifest, Payload, Placement, TensorSpec, Update
from hotswap.uninterrupted import on_worker_thread
from tests.unit.testing.file_strategy import FilePayload, FileStage, FileStrategy

__all__ = ["BROKEN"]

BROKEN: dict[str, tuple[Callable[[], LoadStrategy], str]] = {}
"""What is wrong -> how to make one, and the test that it fails."""

VICTIM = "layers.1.float32"


def broken(what: str, test: str) -> Callable[[type[FileStrategy]], type[FileStrategy]]:
    def note(kind: type[FileStrategy]) -> type[FileStrategy]:
        BROKEN[what] = (kind, test)
        return kind

    return note


def broken_stage(what: str, test: str) -> Callable[[type[FileStage]], type[FileStage]]:
    def note(kind: type[FileStage]) -> type[FileStage]:
        class Strategy(FileStrategy):
            stage = kind

        BROKEN[what] = (Strategy, test)
        return kind

    return note


class Changed(FileStage):
    """Another manifest than that of the files."""

    def load(self) -> None:
        super().load()
        specs = (self.changed(spec) for spec in self.manifest.tensors)
        self.manifest = Manifest.of(spec for spec in specs if spec is not None)

    def changed(self, spec: TensorSpec) -> TensorSpec | None:
        return spec


@broken_stage("a tensor is kept quiet about", "test_the_manifest_names_every_tensor")
class HidesATensor(Changed):
    def changed(self, spec: TensorSpec) -> TensorSpec | None:
        return None if spec.name == VICTIM else spec


@broken_stage(
    "a shape is turned round", "test_the_manifest_has_the_shapes_and_dtypes_of_the_source"
)
class TurnsAShape(Changed):
    def changed(self, spec: TensorSpec) -> TensorSpec | None:
        return replace(spec, shape=spec.shape[::-1]) if spec.name == VICTIM else spec


@broken_stage(
    "a dtype is another of its size", "test_the_manifest_has_the_shapes_and_dtypes_of_the_source"
)
class ClaimsAnotherDtype(Changed):
    def changed(self, spec: TensorSpec) -> TensorSpec | None:
        return replace(spec, dtype=torch.int32) if spec.name == VICTIM else spec


@broken_stage("a tensor comes twice", "test_no_tensor_is_delivered_twice")
class DeliversTwice(FileStage):
    def buckets(self) -> Iterator[Bucket]:
        for bucket in super().buckets():
            yield bucket
            if bucket[0][0] == VICTIM:
                yield bucket


@broken_stage("a tensor is promised and never comes", "test_no_tensor_is_missing")
class ForgetsATensor(FileStage):
    def buckets(self) -> Iterator[Bucket]:
        return (bucket for bucket in super().buckets() if bucket[0][0] != VICTIM)


@broken_stage("a tensor comes that nobody knows", "test_nothing_comes_that_was_not_announced")
class BringsAStranger(FileStage):
    def buckets(self) -> Iterator[Bucket]:
        yield from super().buckets()
        yield [("optimizer.step", torch.zeros(1))]


class OtherPayload(FileStage):
    """Something else than the file has, in memory."""

    def payload(self, spec: TensorSpec) -> Payload:
        payload = super().payload(spec)
        return self.other(dense(payload)) if spec.name == VICTIM else payload

    def other(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


@broken_stage("a tensor comes flat", "test_what_comes_is_what_was_announced")
class DeliversFlat(OtherPayload):
    def other(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.flatten()


@broken_stage("a tensor comes in another dtype", "test_what_comes_is_what_was_announced")
class DeliversDoubles(OtherPayload):
    def other(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.double()


@broken_stage("one bit is wrong", "test_the_bytes_are_those_of_the_source")
class FlipsABit(OtherPayload):
    def other(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(torch.uint8)[-1, -1] ^= 1
        return tensor


@broken_stage("a scalar becomes a vector", "test_empty_and_scalar_tensors_are_delivered")
class NoScalars(Changed):
    def changed(self, spec: TensorSpec) -> TensorSpec | None:
        return replace(spec, shape=spec.shape or (1,))


@broken_stage("an empty tensor is left out", "test_empty_and_scalar_tensors_are_delivered")
class NoEmpties(Changed):
    def changed(self, spec: TensorSpec) -> TensorSpec | None:
        return spec if spec.numel else None


@broken_stage("only the first mebibyte is read", "test_a_huge_tensor_is_delivered_whole")
class ReadsOnce(FileStage):
    class Short(FilePayload):
        def read(self, view: memoryview, at: int) -> int:
            return len(view) if at else super().read(view[: 2**20], at)

    def payload(self, spec: TensorSpec) -> Payload:
        return self.Short(spec, self.fds[spec.name])


@broken_stage("there is one pass and no other", "test_buckets_start_afresh")
class OnePass(FileStage):
    _only: Iterator[Bucket] | None = None

    def buckets(self) -> Iterator[Bucket]:
        if self._only is None:
            self._only = super().buckets()
        return self._only


@broken_stage("one buffer serves all buckets", "test_a_bucket_stays_valid_until_the_stage_is_left")
class OneBuffer(FileStage):
    def buckets(self) -> Iterator[Bucket]:
        room = torch.empty(max(spec.size_bytes for spec in self.manifest.tensors) + 8).byte()
        for spec in self.manifest.tensors:
            out = room[: spec.size_bytes].view(spec.dtype).view(spec.shape)
            FilePayload(spec, self.fds[spec.name]).read_into(out)
            yield [(spec.name, out)]


@broken_stage(
    "a payload belongs to one thread", "test_payloads_can_be_read_again_and_on_any_thread"
)
class OneThread(FileStage):
    class Owned(FilePayload):
        owner: int | None = None

        def read_into(self, out: torch.Tensor) -> None:
            me = threading.get_ident()
            self.owner = self.owner or me
            if self.owner != me:
                raise RuntimeError("made in one thread, and read in another")
            super().read_into(out)

    def payload(self, spec: TensorSpec) -> Payload:
        return self.Owned(spec, self.fds[spec.name])


@broken("the last checkpoint is served again", "test_another_source_is_another_checkpoint")
class ServesTheLast(FileStrategy):
    def __init__(self) -> None:
        self.cached: dict[str, torch.Tensor] = {}

    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        cached = dict(self.cached)

        class Cached(FileStage):
            def payload(self, spec: TensorSpec) -> Payload:
                return cached.get(spec.name, super().payload(spec))

        stage = Cached(update, placement)
        try:
            await on_worker_thread(stage.load)
            yield stage
            self.cached = {
                spec.name: dense(stage.payload(spec))
                for spec in stage.manifest.tensors
                if spec.name == "probe"
            }
        finally:
            stage.close()


@broken("the newest stage is everybody's", "test_two_updates_at_once_do_not_meet")
class OneStage(FileStrategy):
    def __init__(self) -> None:
        newest: list[FileStage] = []

        class Shared(FileStage):
            def load(self) -> None:
                super().load()
                newest.append(self)

            def close(self) -> None:
                super().close()
                if self in newest:
                    newest.remove(self)

            def payload(self, spec: TensorSpec) -> Payload:
                return FilePayload(spec, newest[-1].fds[spec.name])

        self.stage = Shared


@broken("its source is removed once it was read", "test_a_source_can_be_read_again")
class UsesUp(FileStrategy):
    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        async with super().open(update, placement) as stage:
            yield stage
        if placement.world_size == 1:
            await on_worker_thread(shutil.rmtree, update.source, True)


@broken("a missing source is that of before", "test_a_source_that_is_not_there_is_refused")
class FallsBack(FileStrategy):
    last = ""

    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        if await on_worker_thread(Path(update.source).is_dir):
            self.last = update.source
        async with super().open(replace(update, source=self.last), placement) as stage:
            yield stage


@broken_stage("each rank gets a part", "test_every_rank_gets_the_whole_checkpoint")
class SplitsByRank(FileStage):
    def load(self) -> None:
        super().load()
        mine = self.manifest.tensors[self.placement.rank :: self.placement.world_size]
        self.manifest = Manifest.of(mine)


@broken("files are opened on the event loop", "test_opening_does_not_block_the_event_loop")
class Blocks(FileStrategy):
    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        stage = self.stage(update, placement)
        try:
            stage.load()
            yield stage
        finally:
            stage.close()


@broken_stage("files are opened late", "test_nothing_is_opened_while_weights_are_written")
class OpensLate(FileStage):
    def __init__(self, update: Update, placement: Placement) -> None:
        super().__init__(update, placement)
        self.paths: dict[str, Path] = {}

    def open_file(self, name: str, path: Path) -> None:
        self.paths[name] = path

    def payload(self, spec: TensorSpec) -> Payload:
        path = self.paths[spec.name]

        class Late(FilePayload):
            def read(self, view: memoryview, at: int) -> int:
                with path.open("rb") as file:
                    return os.preadv(file.fileno(), [view], at)

        return Late(spec, -1)


def leaks(*, ends: str) -> type[FileStrategy]:
    """A strategy that closes its files unless the update ends in one way."""

    class Leaks(FileStrategy):
        @asynccontextmanager
        async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
            stage = self.stage(update, placement)
            end = "unread"
            try:
                await on_worker_thread(stage.load)
                end = "failed"
                yield stage
                end = "well"
            except BaseException as error:
                end = end if isinstance(error, Exception) else "cancelled"
                raise
            finally:
                if end != ends:
                    stage.close()

    return Leaks


broken("files stay open after an update", "test_leaving_gives_every_handle_back")(
    leaks(ends="well")
)
broken("files stay open after a failure", "test_an_update_that_fails_leaves_nothing")(
    leaks(ends="failed")
)
broken("files stay open after a cancellation", "test_a_cancelled_update_leaves_nothing")(
    leaks(ends="cancelled")
)


@broken("a thread goes on after an update", "test_leaving_gives_every_handle_back")
class LeavesAThread(FileStrategy):
    def __init__(self) -> None:
        self.end = threading.Event()

    def __del__(self) -> None:
        self.end.set()

    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        async with super().open(update, placement) as stage:
            yield stage
        threading.Thread(target=self.end.wait, name="watches the source", daemon=True).start()


@broken_stage(
    "what was opened before a failure stays open",
    "test_a_file_that_cannot_be_opened_rejects_and_leaves_nothing",
)
class ForgetsWhatIsOpen(FileStage):
    def load(self) -> None:
        try:
            super().load()
        except OSError:
            self.fds.clear()
            raise


@broken_stage(
    "a file that does not open is passed over",
    "test_a_file_that_cannot_be_opened_rejects_and_leaves_nothing",
)
class PassesOver(FileStage):
    def open_file(self, name: str, path: Path) -> None:
        try:
            super().open_file(name, path)
        except OSError:
            return

    def buckets(self) -> Iterator[Bucket]:
        opened: Mapping[str, int] = self.fds
        for spec in self.manifest.tensors:
            if spec.name in opened:
                yield [(spec.name, self.payload(spec))]


@broken("what the update raises is swallowed", "test_an_error_of_the_update_is_passed_on")
class Swallows(FileStrategy):
    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        stage = self.stage(update, placement)
        loaded = False
        try:
            await on_worker_thread(stage.load)
            loaded = True
            yield stage
        except Exception:
            if not loaded:
                raise
        finally:
            stage.close()


@broken("the checkpoint stays in memory", "test_leaving_gives_memory_back")
class KeepsMemory(FileStrategy):
    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        async with super().open(update, placement) as stage:
            self.kept += [dense(payload) for bucket in stage.buckets() for _, payload in bucket]
            yield stage
