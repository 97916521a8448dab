"""What pulls leave: words taken down, put together, and kept within a bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotswap.sparse import Base, Origin, Patch, PatchCache, Recorder, TensorPatch
from hotswap.sparse.patch import merged

BASE = Base(path="/base", digest="b")


def at(version: int, directory: str = "/local") -> Origin:
    return Origin(
        directory=directory,
        version=version,
        index_digest=str(version) if version else None,
        state_digest=f"s{version}",
        files=(("model.safetensors", 1, 2, version, version),),
        base=None if version else BASE,
    )


def tensor(words: list[int], value: int, length: int = 1000) -> TensorPatch:
    return TensorPatch(
        words=np.array(words, np.uint32),
        values=np.full(len(words), value, np.uint64),
        length_bytes=length,
    )


def step(before: int, size: int = 1, directory: str = "/local") -> Patch:
    tensors = {"w": tensor(list(range(size)), before)}
    return Patch(before=at(before, directory), after=at(before + 1, directory), tensors=tensors)


def test_the_way_is_found_by_what_was_where() -> None:
    cache = PatchCache(1000)
    steps = [step(number) for number in range(4)]
    for one in steps:
        cache.keep(one)
    assert cache.way(at(1), at(4)) == tuple(steps[1:])
    assert cache.way(BASE, at(2)) == tuple(steps[:2])
    assert cache.way(at(1), at(1)) is None
    assert cache.way(at(4), at(1)) is None
    assert cache.way(at(1, "/other"), at(3)) is None
    assert cache.way(BASE, at(2, "/other")) is None
    assert cache.way(Base(path="/base", digest="c"), at(2)) is None
    assert cache.way(replace(at(1), state_digest="x"), at(3)) is None
    assert cache.way(at(1), replace(at(3), files=())) is None
    cache.forget(steps[1:3])
    assert cache.way(at(1), at(4)) is None
    assert len(cache) == 2
    cache.clear()
    assert (len(cache), cache.size_bytes) == (0, 0)


def test_a_circle_ends() -> None:
    cache = PatchCache(1000)
    cache.keep(step(0))
    cache.keep(Patch(before=at(1), after=at(0), tensors={}))
    assert cache.way(at(0), at(5)) is None


def test_the_oldest_make_room_and_what_is_too_large_is_not_kept() -> None:
    cache = PatchCache(30)
    for number in range(3):
        cache.keep(step(number))
    assert (len(cache), cache.size_bytes) == (2, 24)
    assert cache.way(at(0), at(1)) is None
    cache.keep(step(7, size=3))
    assert cache.way(at(1), at(3)) is not None
    assert cache.way(at(7), at(8)) is None
    cache.limit_bytes = 12
    assert repr(cache) == "<PatchCache 1 patches, 12 of 12 bytes>"
    cache.limit_bytes = 0
    assert (len(cache), cache.limit_bytes) == (0, 0)


def test_the_newest_from_the_same_bytes_counts() -> None:
    cache = PatchCache(1000)
    cache.keep(step(0, size=2))
    other = replace(step(0), after=at(9))
    cache.keep(other)
    assert (cache.way(at(0), at(9)), len(cache)) == ((other,), 1)


def test_later_words_win() -> None:
    one = replace(step(0), tensors={"a": tensor([1, 3, 5], 10), "b": tensor([2], 11)})
    two = replace(step(1), tensors={"a": tensor([0, 3], 20)})
    three = replace(step(2), tensors={"a": tensor([5], 30), "c": tensor([], 31)})
    found = merged([one, two, three])
    assert found.keys() == {"a", "b", "c"}
    assert found["a"].words.tolist() == [0, 1, 3, 5]
    assert found["a"].values.tolist() == [20, 10, 20, 30]
    assert found["b"] is one.tensors["b"]
    assert found["a"].words.dtype == np.uint32
    assert found["a"].values.dtype == np.uint64


def test_patches_are_compared_word_by_word() -> None:
    one = tensor([1, 2], 5)
    assert one.is_as(tensor([1, 2], 5))
    assert not one.is_as(tensor([1, 2], 6))
    assert not one.is_as(tensor([1, 3], 5))
    assert not one.is_as(tensor([1, 2], 5, length=999))
    assert one.size_bytes == 24
    assert repr(step(3)) == "<Patch 3 to 4 of /local 1 tensors, 12 bytes>"
    assert str(at(0)) == "/local at version 0 (the base)"
    assert str(at(2)) == "/local at version 2 (2)"


def test_notes_come_in_any_order_and_are_kept_in_that_of_the_tensor() -> None:
    cache = PatchCache(1000)
    recorder = Recorder(cache, at(0))
    recorder.begin("a", 4096)
    recorder.begin("b", 8)
    values = np.array([8, 9], np.uint64)
    recorder.note("a", 1024, np.array([0, 2]), values)
    values[:] = 0
    recorder.note("a", 0, np.array([1]), np.array([7], np.uint64))
    recorder.end("a")
    recorder.keep(at(1))
    assert len(cache) == 0, "a tensor may change yet"
    recorder.end("b")
    assert repr(recorder) == "<Recorder on /local at version 0 (the base) 2 tensors>"
    recorder.keep(at(1))
    way = cache.way(at(0), at(1))
    assert way is not None
    found = way[0].tensors
    assert (found["a"].words.tolist(), found["a"].values.tolist()) == ([1, 128, 130], [7, 8, 9])
    assert found["a"].length_bytes == 4096
    assert (len(found["b"].words), found["b"].length_bytes) == (0, 8)


@pytest.mark.parametrize(("length_bytes", "words"), [(4096, 4), (2**40, 1)])
def test_more_than_may_be_kept_is_let_go_at_once(length_bytes: int, words: int) -> None:
    cache = PatchCache(40)
    recorder = Recorder(cache, at(0))
    recorder.begin("a", length_bytes)
    recorder.note("a", 2**39, np.arange(words), np.zeros(words, np.uint64))
    recorder.end("a")
    recorder.begin("b", 8)
    recorder.note("b", 0, np.array([0]), np.zeros(1, np.uint64))
    recorder.end("b")
    recorder.keep(at(1))
    assert len(cache) == 0
