"""Load strategies that mix up sources, or keep what they should give back."""

from __future__ import annotations

import mmap
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import torch

from hotswap.seams import Stage
from hotswap.testing.delivered import dense
from hotswap.types import Bucket, Manifest, Payload, Placement, TensorSpec, Update
from hotswap.uninterrupted import on_worker_thread
from tests.unit.testing.file_strategy import FilePayload, FileStage, FileStrategy
from tests.unit.testing.planted_strategies import LEFT_BEHIND, broken, broken_stage

__all__: list[str] = []


@broken(
    "the last checkpoint is served again",
    "test_another_source_is_another_checkpoint",
    says=r"source-1' delivers the weights of another source: probe",
)
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


@broken(
    "the newest stage is everybody's",
    "test_two_updates_at_once_do_not_meet",
    says=r"source-0' delivered other weights: probe",
)
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


@broken(
    "its source is removed once it was read",
    "test_a_source_can_be_read_again",
    says=r"source-0' was read once and cannot be read again \(UpdateRejected",
)
class UsesUp(FileStrategy):
    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        async with super().open(update, placement) as stage:
            yield stage
        if placement.world_size == 1:
            await on_worker_thread(shutil.rmtree, update.source, True)


@broken(
    "a missing source is that of before",
    "test_a_source_that_is_not_there_is_refused",
    says=r"'/hotswap-conformance/no-such-source', which is not there, was opened with 6 tensors",
)
class FallsBack(FileStrategy):
    last = ""

    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        if await on_worker_thread(Path(update.source).is_dir):
            self.last = update.source
        async with super().open(replace(update, source=self.last), placement) as stage:
            yield stage


@broken_stage(
    "each rank gets a part",
    "test_every_rank_gets_the_whole_checkpoint",
    says=r"rank 0 of 4 gets something else .*layers",
)
class SplitsByRank(FileStage):
    def load(self) -> None:
        super().load()
        mine = self.manifest.tensors[self.placement.rank :: self.placement.world_size]
        self.manifest = Manifest.of(mine)


@broken_stage(
    "each rank gets its rows",
    "test_every_rank_gets_the_whole_checkpoint",
    says=r"rank 0 of 4 .*layers\.1\.float32 \[1, 3\] float32, wanted",
)
class SplitsRows(FileStage):
    def load(self) -> None:
        super().load()
        self.manifest = Manifest.of(self.mine(spec) for spec in self.manifest.tensors)

    def mine(self, spec: TensorSpec) -> TensorSpec:
        alone = self.placement.world_size == 1
        return spec if alone or spec.shape[0] == 1 else replace(spec, shape=(1, *spec.shape[1:]))


@broken(
    "files are opened on the event loop",
    "test_opening_does_not_block_the_event_loop",
    says=r"the event loop waited for open '.*index\.json",
)
class Blocks(FileStrategy):
    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        stage = self.stage(update, placement)
        try:
            stage.load()
            yield stage
        finally:
            stage.close()


@broken_stage(
    "files are opened late",
    "test_nothing_is_opened_while_weights_are_written",
    says=r"opened while the buckets were read: open '.*0\.bin",
)
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


@broken_stage(
    "a socket is opened late",
    "test_nothing_is_opened_while_weights_are_written",
    says=r"opened while the buckets were read: socket\.__new__",
)
class ConnectsLate(FileStage):
    def payload(self, spec: TensorSpec) -> Payload:
        class Asks(FilePayload):
            def read(self, view: memoryview, at: int) -> int:
                with socket.socket():
                    return super().read(view, at)

        return Asks(spec, self.fds[spec.name])


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


broken(
    "files stay open after an update",
    "test_leaving_gives_every_handle_back",
    says=r"succeeded this is still held: descriptor \d+ \(.*\.bin",
)(leaks(ends="well"))
broken(
    "files stay open after a failure",
    "test_an_update_that_fails_leaves_nothing",
    says=r"failed at bucket 0 this is still held: descriptor \d+ \(.*\.bin",
)(leaks(ends="failed"))
broken(
    "files stay open after a cancellation",
    "test_a_cancelled_update_leaves_nothing",
    says=r"await \d+, in open \(broken_holdings\.py:\d+\), it still holds descriptor",
)(leaks(ends="cancelled"))


@broken(
    "a thread goes on after an update",
    "test_leaving_gives_every_handle_back",
    says=r"thread watches the source",
)
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


class Holding(FileStage):
    """Holds something besides files; ``let_go`` gives it back."""

    def let_go(self) -> None:
        """Nothing, here."""


def keeps(kind: type[Holding]) -> type[FileStrategy]:
    """A strategy that does not let go after an update that went well."""

    class Keeps(FileStrategy):
        @asynccontextmanager
        async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
            stage = kind(update, placement)
            letting_go = [stage]
            try:
                await on_worker_thread(stage.load)
                yield stage
                LEFT_BEHIND.append(letting_go.pop().let_go)
            finally:
                stage.close()
                for one in letting_go:
                    one.let_go()

    return Keeps


class Mapped(Holding):
    mapped: mmap.mmap | None = None

    def load(self) -> None:
        super().load()
        with (self.source / "index.json").open("rb") as file:
            self.mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def let_go(self) -> None:
        if self.mapped is not None:
            self.mapped.close()


class Watched(Holding):
    process: subprocess.Popen[bytes] | None = None

    def load(self) -> None:
        super().load()
        # It ends when its input does.
        self.process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def let_go(self) -> None:
        if self.process is not None:
            self.process.communicate()


broken(
    "a file stays mapped after an update",
    "test_leaving_gives_every_handle_back",
    says=r"mapping of .*index\.json",
)(keeps(Mapped))
broken(
    "a process goes on after an update",
    "test_leaving_gives_every_handle_back",
    says=r"child process \d+",
)(keeps(Watched))


@broken_stage(
    "what was opened before a failure stays open",
    "test_a_file_that_cannot_be_opened_rejects_and_leaves_nothing",
    says=r"opening number \d \(open '.*\.bin'\) failed, and this is still held: descriptor",
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
    says=r"opening number \d .* went on: layers\.0\.float32 does not come",
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


@broken(
    "what the update raises is swallowed",
    "test_an_error_of_the_update_is_passed_on",
    says=r"an exception of the update was swallowed",
)
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


@broken(
    "the checkpoint stays in memory",
    "test_leaving_gives_memory_back",
    says=r"an update of 40 MiB the process holds \d+ MiB more",
)
class KeepsMemory(FileStrategy):
    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        async with super().open(update, placement) as stage:
            self.kept += [dense(payload) for bucket in stage.buckets() for _, payload in bucket]
            yield stage
