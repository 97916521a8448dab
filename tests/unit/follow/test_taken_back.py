"""A server that shares its directory finds out what another one's pull has changed."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from hotswap_disk import DiskStrategy

from hotswap.follow.mark import VersionMark
from hotswap.follow.strategy import FollowStrategy, options_of
from hotswap.follow.taken_back import TakenBack
from hotswap.sparse import Origin, PatchCache
from hotswap.sparse.patch import merged
from hotswap.sparse.staging import Changes, origin_of_stage
from hotswap.stream import DeltaDamaged, LocalDamaged, pull
from hotswap.stream.layout import directory_of
from hotswap.stream.log import holding_in
from hotswap.types import Placement, Update
from tests.unit.stream.streams import Stream, changed, publish


class Sharing:
    """A server that commits what somebody else pulls into the directory of ``stream``."""

    def __init__(self, stream: Stream, *, knows_source: bool = True) -> None:
        self.stream = stream
        self.patches = PatchCache()
        source = stream.source if knows_source else None
        self.strategy = FollowStrategy(DiskStrategy(), source=source)

    @asynccontextmanager
    async def committing(self, version: int) -> AsyncIterator[tuple[Origin, object]]:
        """Others have pulled ``version``; what the commit of it knows."""
        stream = self.stream
        pull(stream.local, stream.source, version, base_dir=stream.base, threads=1)
        held = holding_in(stream.local)
        assert held is not None
        mark = VersionMark(version=version, index_digest=held.state.index_digest)
        update = Update(source=str(stream.local), strategy="follow", options=options_of(mark))
        async with self.strategy.open(update, Placement()) as stage:
            origin = origin_of_stage(stage)
            assert origin is not None
            yield origin, getattr(stage, "changes", None)

    async def committed(self, version: int) -> Origin:
        """It has been, and is live."""
        async with self.committing(version) as (origin, _):
            return origin

    async def leads(self, live: Origin, version: int) -> bool:
        """Whether it is found out what leads from ``live`` to ``version``; then that it does."""
        async with self.committing(version) as (origin, changes):
            assert isinstance(changes, Changes)
            found = changes.keep_since(live, self.patches)
        way = self.patches.way(live, origin)
        assert (way is not None) is found
        if way is not None:
            before, after = self.stream.at(live.version), self.stream.at(version)
            for name, patch in merged(way).items():
                room = np.zeros(-(-len(before[name]) // 8) * 8, np.uint8)
                room[: len(before[name])] = np.frombuffer(before[name], np.uint8)
                room.view("<u8")[patch.words] = patch.values
                before[name] = room[: len(before[name])].tobytes()
            assert before == after
        return found


async def test_what_was_xored_is_taken_back(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "gap", "xor", "gap")
    server = Sharing(stream)
    one = await server.committed(1)
    assert await server.leads(one, 2)
    # Several versions at once, too.
    assert await server.leads(await server.committed(2), 4)


async def test_a_tensor_that_no_delta_is_about_stays(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    server = Sharing(stream)
    one = await server.committed(1)
    new = {**stream.tensors[1]}
    name = min(new)
    new[name] = changed({name: new[name]}, 9)[name]
    old = {name: stream.tensors[1][name]}
    publish(stream.source, 2, old, {name: new[name]}, encoding="gap")
    stream.tensors.append(new)
    assert await server.leads(one, 2)
    (patch,) = server.patches.way(one, await server.committed(2)) or ()
    assert list(patch.tensors) == [name]


async def test_what_cannot_be_found_out_is_not(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "overwrite", "xor", "full", "xor")
    server = Sharing(stream)
    one = await server.committed(1)
    # An overwrite says nothing of what was there before, a full version neither.
    assert not await server.leads(one, 2)
    assert not await server.leads(one, 3)
    three = await server.committed(3)
    assert not await server.leads(three, 5)
    # Nor does anything lead back, or from where nobody has been.
    assert not await server.leads(three, 1)
    assert not await Sharing(stream).leads(one, 3)
    async with Sharing(stream, knows_source=False).committing(3) as (_, changes):
        assert changes is None


async def test_a_delta_that_is_another_by_now_is_noticed(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor")
    server = Sharing(stream)
    one = await server.committed(1)
    async with server.committing(2) as (_, changes):
        assert isinstance(changes, Changes)
        shutil.rmtree(directory_of(stream.source, 2))
        publish(stream.source, 2, stream.tensors[0], stream.tensors[2])
        with pytest.raises(DeltaDamaged, match="do not lead back to what is live"):
            changes.keep_since(one, server.patches)
    assert len(server.patches) == 0


async def test_files_that_are_not_what_a_pull_left_are_noticed(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor")
    server = Sharing(stream)
    one = await server.committed(1)
    async with server.committing(2) as (_, changes):
        assert isinstance(changes, Changes)
        file = max(stream.local.glob("*.safetensors"))
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(LocalDamaged, match="is not what the last pull left; pull again"):
            changes.keep_since(one, server.patches)
    assert len(server.patches) == 0


async def test_only_what_is_there_is_remembered(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor")
    server = Sharing(stream)
    one = await server.committed(1)
    await server.committed(2)
    back = TakenBack(stream.source)
    back.note(one)
    assert repr(back) == f"<TakenBack from {stream.source}, knows 0>"
