"""A strided tensor in shared memory costs its elements, however far apart they lie."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotswap.controller import Controller
from hotswap.errors import UpdateRejected
from hotswap.fetch import Buckets
from hotswap.gathering import Gathering
from hotswap.seams import Plan
from hotswap.testing.module_engine import ModuleEngine
from hotswap.testing.tiny_modules import VOCAB, TinyModel, tiny_target
from hotswap.types import Bucket, LoadMode, Manifest, TensorSpec
from hotswap.weights.folder import OpenFile
from hotswap.weights.pieces import Scattered, fill_jobs
from hotswap.weights.target import WeightTarget
from hotswap.wire import (
    PUSHED,
    PayloadRefused,
    PushStrategy,
    Sent,
    SentTensor,
    SharedStorage,
    push_update,
)
from hotswap.wire.references import HEADER_BYTES
from hotswap.wire.strided import MAX_READS, StridedTensor

NAME = f"torch_{os.getpid()}_17_0"
TERABYTE = 2**40


class Counted(OpenFile):
    """A file that counts what is read of it."""

    reads = 0
    read_bytes_in_all = 0

    def read_at(self, offset: int, *outs: memoryview) -> None:
        self.reads += 1
        self.read_bytes_in_all += sum(map(len, outs))
        super().read_at(offset, *outs)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


def a_file(path: Path, size_bytes: int, values: dict[int, bytes]) -> Counted:
    """A sparse segment of ``size_bytes`` behind the header, with ``values`` at some offsets."""
    with path.open("wb") as file:
        file.truncate(HEADER_BYTES + size_bytes)
        for at, value in values.items():
            file.seek(HEADER_BYTES + at)
            file.write(value)
    return Counted(os.open(path, os.O_RDONLY), name=path.name)


def strided(
    file: OpenFile,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    *,
    dtype: torch.dtype = torch.float32,
    offset: int = 0,
) -> StridedTensor:
    storage = SharedStorage(name=NAME, size_bytes=file.size_bytes - HEADER_BYTES)
    tensor = SentTensor(
        dtype=dtype, shape=shape, strides=strides, offset_bytes=offset, storage=storage
    )
    spec = TensorSpec(name="w", dtype=dtype, shape=shape)
    return StridedTensor(spec, tensor=tensor, file=file, start=HEADER_BYTES)


def filled(payload: StridedTensor, out: torch.Tensor, *part: slice) -> torch.Tensor:
    (job,) = fill_jobs(out, payload, part=part)
    job()
    return out


def test_elements_terabytes_apart(directory: Path) -> None:
    """A sparse file of 8 TB costs its owner nothing, and us 64 small reads."""
    step = TERABYTE // 8 // 4
    values = {at * step * 4: torch.tensor([float(at)]).numpy().tobytes() for at in range(64)}
    try:
        file = a_file(directory / NAME, 64 * step * 4, values)
    except OSError as error:  # a file system that has no files of that size
        pytest.skip(f"no sparse file of 8 TB here: {error}")
    with file:
        got = filled(strided(file, (64,), (step,)), torch.empty(64))
        assert torch.equal(got, torch.arange(64.0))
        assert (file.reads, file.read_bytes_in_all) == (64, 256)


@pytest.mark.parametrize(
    ("shape", "strides", "reads", "read_bytes"),
    [
        ((64,), (2**19,), 64, 256),  # a column of a huge matrix
        ((64, 3), (2**19, 1), 64, 768),  # some columns
        ((3, 64), (1, 2**19), 64, 768),  # and those turned
        ((4096, 512), (1, 4096), 8, 4096 * 512 * 4),  # all of a matrix, turned
        ((2, 2**19), (2**20, 1), 4, 2**22),  # halves of two rows
        ((1000,), (2,), 1, 1999 * 4),  # every other one
        ((5, 0), (7, 1), 0, 0),
        ((4, 2**20), (1, 0), 1, 16),  # one element many times
    ],
)
def test_what_is_read(
    directory: Path,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    reads: int,
    read_bytes: int,
) -> None:
    with a_file(directory / NAME, 2**28, {}) as file:
        got = filled(strided(file, shape, strides), torch.ones(shape))
        assert not got.any()
        assert (file.reads, file.read_bytes_in_all) == (reads, read_bytes)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    dims = draw(st.integers(0, 4))
    shape = draw(st.tuples(*[st.integers(1, 5)] * dims))
    step = st.sampled_from([0, 1, 2, 3, 5, 7, 40, 4095, 4097, 20_000, 262_143, 262_145])
    return shape, draw(st.tuples(*[step] * dims))


@pytest.fixture(scope="module")
def patterned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[torch.Tensor, OpenFile]]:
    """17 MB of numbers that differ, and the file that has them."""
    flat = torch.arange(4 * 4 * 262_145 + 1, dtype=torch.int32)
    path = tmp_path_factory.mktemp("pattern") / NAME
    with a_file(path, flat.nbytes, {0: flat.numpy().tobytes()}) as file:
        yield flat, file


@settings(max_examples=150, deadline=None)
@given(layout=layouts(), cut=st.integers(0, 4), cast=st.booleans(), turned=st.booleans())
def test_any_layout_is_what_torch_makes_of_it(
    patterned: tuple[torch.Tensor, OpenFile],
    layout: tuple[tuple[int, ...], tuple[int, ...]],
    cut: int,
    cast: bool,
    turned: bool,
) -> None:
    flat, file = patterned
    shape, strides = layout
    wanted = flat.as_strided(shape, strides)
    part = (slice(min(cut, shape[0] - 1), None),) if shape and cut else ()
    wanted = wanted[part]
    out = torch.empty(wanted.shape, dtype=torch.float64 if cast else torch.int32)
    if turned:  # live weights may have any layout too
        out = torch.empty(wanted.shape[::-1], dtype=out.dtype).permute(
            tuple(range(out.dim()))[::-1]
        )
    got = filled(strided(file, shape, strides, dtype=torch.int32), out, *part)
    assert torch.equal(got, wanted.to(out.dtype))


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
def test_any_dtype_keeps_its_bits(directory: Path, dtype: torch.dtype) -> None:
    raw = (torch.arange(96, dtype=torch.uint8) % 2).view(dtype)
    with a_file(directory / NAME, 96, {0: raw.view(torch.uint8).numpy().tobytes()}) as file:
        half = len(raw) // 2
        got = filled(
            strided(file, (2, half), (1, 2), dtype=dtype), torch.empty(2, half, dtype=dtype)
        )
        wanted = raw.view(half, 2).t().contiguous()
        assert torch.equal(got.view(torch.uint8), wanted.view(torch.uint8))


def test_too_many_places_are_refused_before_anything_is_read(directory: Path) -> None:
    with a_file(directory / NAME, TERABYTE // 8, {}) as file:
        with pytest.raises(PayloadRefused, match=r"more than 1048576 places .* contiguous copy"):
            strided(file, (MAX_READS + 1,), (2**13,))
        with pytest.raises(PayloadRefused, match="more than 1048576 places"):
            strided(file, (2**30, 2**11, 2**11), (0, 2**13, 2**13))
        strided(file, (2**40, 5), (0, 2**13))
        assert file.reads == 0


@pytest.mark.parametrize("strides", [(2,), (2**13,)])
def test_one_that_is_cut_short_names_the_tensor(directory: Path, strides: tuple[int]) -> None:
    with a_file(directory / NAME, 2**20, {}) as file:
        payload = strided(file, (8,), strides)
        os.truncate(directory / NAME, HEADER_BYTES + 8)
        with pytest.raises(OSError, match="tensor 'w': torch_"):
            payload.read_into(torch.empty(8))


class OneBucket:
    """A stage of one bucket."""

    manifest = Manifest.of(())

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def buckets(self) -> list[Bucket]:
        """It."""
        return [self._bucket]


async def test_what_is_planned_is_gathered_and_nothing_else(directory: Path) -> None:
    plain = torch.ones(3)
    huge = math.isqrt(2**40)
    with a_file(directory / NAME, 2**28, {}) as file:
        column = strided(file, (64,), (2**19,))
        skipped = strided(file, (huge, huge), (0, 0))  # 4 TiB, of a name that the model has not
        assert isinstance(column, Scattered)
        stage = OneBucket([("column", column), ("plain", plain), ("skipped", skipped)])
        with Gathering(Buckets(stage), {"column": 1, "plain": 1}) as gathering:
            bucket = dict(await gathering.next() or ())
            assert list(bucket) == ["column", "plain", "skipped"]
            assert bucket["plain"] is plain
            assert bucket["skipped"] is skipped
            assert isinstance(bucket["column"], torch.Tensor)
            assert torch.equal(bucket["column"], torch.zeros(64))
            assert file.reads == 64
            assert await gathering.next() is None
            del bucket


async def test_memory_that_cannot_be_had_is_a_refusal(directory: Path) -> None:
    with a_file(directory / NAME, 2**20, {}) as file:
        stage = OneBucket([("w", strided(file, (2**55,), (0,)))])
        with (
            Gathering(Buckets(stage), {"w"}) as gathering,
            pytest.raises(UpdateRejected, match=r"MemoryError.*nothing was written"),
        ):
            await gathering.next()


class Watching(ModuleEngine):
    """Notes which kinds of payloads a commit writes."""

    def __init__(self, target: WeightTarget) -> None:
        super().__init__(target)
        self.kinds: list[type] = []

    async def write(self, plan: Plan, bucket: Bucket) -> None:
        self.kinds += [type(payload) for _, payload in bucket]
        await super().write(plan, bucket)


@pytest.mark.parametrize("mode", LoadMode)
async def test_a_staged_push_is_gathered_before_the_commit(mode: LoadMode) -> None:
    """The columns of a huge matrix, in a sparse segment of 8 TB."""
    wanted = torch.randn(VOCAB, 6)
    step = TERABYTE // 4 // VOCAB
    storage = SharedStorage(name=NAME, size_bytes=TERABYTE + 24)
    rows = {at * step * 4: row.numpy().tobytes() for at, row in enumerate(wanted)}
    path = Path("/dev/shm") / NAME
    tensor = SentTensor(
        dtype=torch.float32,
        shape=(VOCAB, 6),
        strides=(step, 1),
        offset_bytes=0,
        storage=storage,
    )
    engine = Watching(tiny_target(TinyModel()))
    controller = Controller(engine, strategies={PUSHED: PushStrategy()})
    try:
        a_file(path, storage.size_bytes, rows).close()
        sent = Sent(tensors={"embed.weight": tensor}, segments=frozenset({storage}), references={})
        await controller.update(push_update(sent, mode=mode))
        assert path.stat().st_blocks * 512 < 2**20, "reading has filled the gaps"
    finally:
        path.unlink(missing_ok=True)
    assert torch.equal(engine.target.module.get_parameter("embed.weight"), wanted)
    assert engine.kinds == [torch.Tensor if mode is LoadMode.STAGED else StridedTensor]
