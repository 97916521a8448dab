"""Buckets that are none, and stages that are none, are told in a sentence."""

from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from hotswap.errors import UpdateRejected
from hotswap.fetch import opened
from hotswap.testing.delivered import arrivals, delivered
from hotswap.testing.module_engine import HeldTensor
from hotswap.types import Bucket, Placement, Update

ONE = torch.ones(2)


@pytest.mark.parametrize(
    ("bucket", "says"),
    [
        ({"a": ONE}, "bucket 0 is a dict, wanted a list; yield lists of"),
        (("a", ONE), "bucket 0 holds a str, wanted a name and its tensor; yield lists of"),
        ([("a", ONE, 3)], "bucket 0 holds a tuple, wanted a name and its tensor"),
        ([(3, ONE)], "bucket 0 names a tensor by a int, wanted a text"),
        (
            [("a", np.ones(2))],
            "bucket 0 delivers 'a' as a ndarray, wanted a torch.Tensor or an object with spec "
            "and read_into(out); convert it, torch.from_numpy(array)",
        ),
    ],
)
def test_a_bucket_that_is_none_says_what_one_is(bucket: Bucket, says: str) -> None:
    with pytest.raises(AssertionError) as caught:
        list(arrivals([bucket]))
    assert says in str(caught.value)


def test_a_tensor_that_cannot_be_read_is_named() -> None:
    broken = HeldTensor("b", ONE, error=OSError("the disk is gone"))
    with pytest.raises(OSError, match="the disk is gone") as caught:
        delivered([[("a", ONE)], [("b", broken)]])
    assert caught.value.__notes__ == ["while tensor 'b' of bucket 1 was read"]


class Strange:
    """A strategy whose ``open`` returns what a test says."""

    def __init__(self, made: object) -> None:
        self.made = made

    def open(self, update: Update, placement: Placement) -> Any:
        return self.made


class Unannounced:
    """A stage with a tuple for its manifest."""

    manifest = (("a", (2,)),)

    def buckets(self) -> list[Bucket]:
        return [[("a", ONE)]]


async def undecorated() -> None:
    """What ``async def open`` makes without ``@asynccontextmanager`` and without a yield."""


async def generated() -> AsyncIterator[None]:
    """The same, with a yield."""
    yield


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            undecorated,
            r"open\(\) returned a coroutine, wanted an asynchronous context manager;",
        ),
        (generated, r"open\(\) returned a async_generator, wanted an asynchronous context manager"),
        (
            lambda: nullcontext(Unannounced()),
            r"the manifest of its stage is a tuple, wanted a hotswap.Manifest; make it with",
        ),
        (nullcontext, r"'NoneType' object has no attribute 'manifest'"),
    ],
)
async def test_a_strategy_that_opens_no_stage_rejects_the_update(
    make: Callable[[], object], says: str
) -> None:
    update = Update(source="x", strategy="strange")
    with pytest.raises(UpdateRejected, match=rf"opening 'x' \(strategy 'strange'\) .*{says}"):
        async with opened(Strange(make()), update, Placement()):
            raise AssertionError("opened")


async def test_what_open_itself_raises_rejects_the_update() -> None:
    class Raises:
        def open(self, update: Update, placement: Placement) -> Any:
            raise FileNotFoundError(update.source)

    with pytest.raises(UpdateRejected, match=r"opening 'x' .* FileNotFoundError: x; nothing was"):
        async with opened(Raises(), Update(source="x"), Placement()):
            raise AssertionError("opened")
