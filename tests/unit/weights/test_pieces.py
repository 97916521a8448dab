"""Jobs that fill a tensor: exact for every layout and cast, and small."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotswap.testing.module_engine import HeldPieces, HeldTensor
from hotswap.types import Payload
from hotswap.weights.pieces import PIECE_BYTES, PieceReadable, equal_bytes, fill_jobs

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn]


def fill(out: torch.Tensor, payload: Payload) -> int:
    jobs = fill_jobs(out, payload)
    random.Random(0).shuffle(jobs)
    for job in jobs:
        job()
    return len(jobs)


@st.composite
def layouts(draw: st.DrawFn) -> torch.Tensor:
    """A view with any offset, steps, order of dimensions and repeated ones."""
    sizes = draw(st.lists(st.integers(0, 7), min_size=0, max_size=4))
    steps = [draw(st.integers(1, 3)) for _ in sizes]
    offsets = [draw(st.integers(0, 2)) for _ in sizes]
    order = draw(st.permutations(range(len(sizes))))
    whole = [size * step + offset for size, step, offset in zip(sizes, steps, offsets, strict=True)]
    base = torch.randn([whole[at] for at in order]) * 100
    view = base.permute([order.index(at) for at in range(len(sizes))])
    for at, (size, step, offset) in enumerate(zip(sizes, steps, offsets, strict=True)):
        view = view.narrow(at, offset, size * step)[
            (slice(None),) * at + (slice(None, None, step),)
        ]
    if sizes and sizes[0] and draw(st.booleans()):
        view = view[:1].expand(sizes)
    return view


@given(source=layouts(), dtype=st.sampled_from(FLOATS), live=st.sampled_from(FLOATS))
@settings(deadline=None, max_examples=200)
def test_any_layout_and_cast_equals_tensor_to(
    source: torch.Tensor, dtype: torch.dtype, live: torch.dtype
) -> None:
    source = source.to(dtype) if dtype is not torch.float32 else source
    wanted = source.to(live).contiguous()
    for payload in (source, HeldTensor("x", source), HeldPieces("x", source)):
        out = torch.full(source.shape, 7.0).to(live)
        fill(out, payload)
        assert equal_bytes(out, wanted), payload


@pytest.mark.parametrize("live", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(9_000_001,), (3, 3_000_001), (3001, 3001)])
def test_big_tensors_are_cut(shape: tuple[int, ...], live: torch.dtype) -> None:
    source = torch.arange(9_006_001, dtype=torch.float32)[: torch.Size(shape).numel()].view(shape)
    wanted = source.to(live)
    payloads: list[Payload] = [source, HeldPieces("x", source)]
    if source.dim() == 2:
        payloads.append(source.t().contiguous().t())
    for payload in payloads:
        out = torch.zeros(shape, dtype=live)
        jobs = fill(out, payload)
        assert torch.equal(out, wanted)
        assert jobs >= source.nbytes // PIECE_BYTES


def test_a_plain_readable_is_one_job_and_a_piece_readable_many() -> None:
    source = torch.zeros(PIECE_BYTES // 4 * 2 + 1)
    whole, pieces = HeldTensor("x", source), HeldPieces("x", source)
    assert not isinstance(whole, PieceReadable)
    assert isinstance(pieces, PieceReadable)
    assert fill(torch.zeros_like(source), whole) == whole.reads == 1
    assert fill(torch.zeros_like(source), pieces) == pieces.reads == 3


def test_a_cast_of_pieces_reads_little_at_a_time() -> None:
    class Watched(HeldPieces):
        largest = 0

        def read_piece(self, out: torch.Tensor, start: int) -> None:
            self.largest = max(self.largest, out.nbytes)
            super().read_piece(out, start)

    source = Watched("x", torch.randn(3 * 2**20))
    out = torch.zeros(3 * 2**20, dtype=torch.bfloat16)
    fill(out, source)
    assert torch.equal(out, source.tensor.to(torch.bfloat16))
    assert source.largest == 2**20


@pytest.fixture
def two_torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_torch_threads")
@pytest.mark.parametrize("live", [torch.float32, torch.bfloat16])
def test_jobs_stay_on_their_thread(live: torch.dtype) -> None:
    source = torch.randn(2048, 2048)
    out = torch.zeros(2048, 2048, dtype=live)
    jobs = fill_jobs(out, source) + fill_jobs(out, source.t())
    counts: list[int] = []

    def work() -> None:
        before = _kernel_threads()
        for job in jobs:
            job()
        counts.append(_kernel_threads() - before)

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    assert counts == [0]


def _kernel_threads() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.zeros(3_000_000), torch.zeros(3_000_000), True),
        (
            torch.zeros(3_000_000),
            torch.zeros(3_000_000).index_fill(0, torch.tensor(2_999_999), 1),
            False,
        ),
        (torch.zeros(0), torch.zeros(0), True),
        (torch.tensor(1.0), torch.tensor(1.0), True),
        (torch.zeros(2), torch.zeros(3), False),
    ],
)
def test_equality_is_of_bits(one: torch.Tensor, other: torch.Tensor, same: bool) -> None:
    assert equal_bytes(one, other) is same


class Repoints(HeldTensor):
    """Makes what it is to fill another tensor."""

    def __init__(self, tensor: torch.Tensor, how: Callable[[torch.Tensor], object]) -> None:
        super().__init__("w", tensor)
        self.how = how

    def _fill(self, out: torch.Tensor, start: int) -> None:
        super()._fill(out, start)
        self.how(out)

    def read_into(self, out: torch.Tensor) -> None:
        self.how(out)


class RepointsPieces(Repoints, HeldPieces):
    """In pieces."""


def other_data(out: torch.Tensor) -> None:
    out.data = torch.zeros_like(out)


@pytest.mark.parametrize("live", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [Repoints, RepointsPieces])
@pytest.mark.parametrize(
    "how",
    [
        lambda out: out.set_(torch.zeros_like(out)),
        lambda out: out.resize_(1),
        lambda out: out.unsqueeze_(0),
        other_data,
    ],
    ids=["set_", "resize_", "unsqueeze_", "data"],
)
def test_a_read_that_makes_out_other_memory_has_failed(
    how: Callable[[torch.Tensor], object], kind: type[Repoints], live: torch.dtype
) -> None:
    """What was to be filled is unfilled, and ``out`` tells nobody."""
    with pytest.raises(ValueError, match=r"put other memory in the place of .*fill out in place"):
        fill(torch.empty(3, 5, dtype=live), kind(torch.ones(3, 5), how))
