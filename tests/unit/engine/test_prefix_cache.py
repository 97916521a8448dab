from __future__ import annotations

import asyncio

import anyio
import pytest
import torch

from hotswap.engine import EmbeddedEngine
from hotswap.engine.kv import KvCache, KvShape
from hotswap.engine.prefix_cache import CacheStats, PrefixCache
from hotswap.engine.prefix_tree import common_length
from hotswap.types import PauseMode, WeightStamp
from tests.unit.engine.conftest import Make
from tests.unit.engine.driving import (
    Turnstile,
    chunks_of,
    generate,
    load_while_paused,
    random_ids,
    submit,
    tokens_of,
)

SHAPE = KvShape(
    num_layers=2, num_kv_heads=1, head_dim=4, dtype=torch.float32, device=torch.device("cpu")
)
PROMPT = random_ids(20, seed=3)


def kv_of(tokens: list[int]) -> KvCache:
    """KV whose every number is the token it stands for."""
    kv = KvCache(SHAPE)
    kv.reserve(len(tokens))
    rows = torch.tensor(tokens, dtype=torch.float32)[None, :, None].expand(1, -1, 4)
    for layer in range(2):
        kv.store(layer, rows, -rows)
    kv.advance(len(tokens))
    return kv


def filled(cache: PrefixCache, tokens: list[int], *, epoch: int = 0) -> list[float]:
    """The tokens that the cache knew but for the last, read back from the KV."""
    kv = KvCache(SHAPE)
    length = cache.fill(kv, tokens[:-1], epoch=epoch)
    cache.count(length)
    assert length == kv.length
    keys, values = kv.layer(1, length)
    assert torch.equal(keys, -values)
    seen: list[float] = keys[0, :, 0].tolist()
    return seen


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache(max_entries=3, max_bytes=2**20)


@pytest.mark.parametrize(
    ("left", "right", "shared"),
    [((), (1,), 0), ((1, 2), (2, 1), 0), ((1, 2, 3), (1, 2, 4), 2), ((1, 2), (1, 2, 3), 2)],
)
def test_common_length(left: tuple[int, ...], right: tuple[int, ...], shared: int) -> None:
    assert common_length(left, right) == shared
    assert common_length(right, left) == shared


def test_the_longest_common_prefix_is_copied(cache: PrefixCache) -> None:
    cache.insert(kv_of([1, 2, 3, 4]), [1, 2, 3, 4, 99], epoch=0)
    cache.insert(kv_of([1, 2, 5]), [1, 2, 5], epoch=0)
    assert filled(cache, [1, 2, 3, 7, 8]) == [1, 2, 3]
    assert filled(cache, [1, 2, 5, 6]) == [1, 2, 5]
    assert filled(cache, [4, 4]) == []
    assert cache.stats == CacheStats(
        hits=2, misses=1, hit_tokens=6, entries=2, size_bytes=cache.stats.size_bytes
    )
    assert cache.stats.size_bytes == 7 * 2 * 2 * 4 * 4


def test_what_is_there_already_is_not_copied_again(cache: PrefixCache) -> None:
    cache.insert(kv_of([1, 2, 3]), [1, 2, 3], epoch=0)
    # The first of them is not what the cache has: it must stay as it is.
    kv = kv_of([9])
    assert cache.fill(kv, [1, 2, 3], epoch=0) == 2
    assert kv.layer(0, 3)[0][0, :, 0].tolist() == [9, 2, 3]
    assert cache.fill(kv, [1, 2, 3], epoch=0) == 0
    assert cache.fill(kv, [1, 2], epoch=0) == 0


def test_another_epoch_never_matches(cache: PrefixCache) -> None:
    cache.insert(kv_of([1, 2, 3]), [1, 2, 3], epoch=0)
    assert filled(cache, [1, 2, 3, 4], epoch=1) == []
    cache.insert(kv_of([1, 2]), [1, 2], epoch=1)
    cache.keep_only(1)
    assert cache.stats.entries == 1
    assert filled(cache, [1, 2, 3, 4], epoch=0) == []
    assert filled(cache, [1, 2, 3, 4], epoch=1) == [1, 2]


def test_a_longer_text_replaces_its_beginning(cache: PrefixCache) -> None:
    cache.insert(kv_of([1, 2]), [1, 2], epoch=0)
    cache.insert(kv_of([1, 2, 3]), [1, 2, 3], epoch=0)
    cache.insert(kv_of([1]), [1], epoch=0)
    assert cache.stats.entries == 1
    assert filled(cache, [1, 2, 3, 4]) == [1, 2, 3]


def test_the_least_recently_used_goes_first(cache: PrefixCache) -> None:
    for token in (1, 2, 3):
        cache.insert(kv_of([token]), [token], epoch=0)
    assert filled(cache, [1, 9]) == [1]
    cache.insert(kv_of([4]), [4], epoch=0)
    assert [filled(cache, [token, 9]) for token in (1, 2, 3, 4)] == [[1], [], [3], [4]]


def test_bytes_are_bounded() -> None:
    one = kv_of([1, 2, 3]).trimmed().size_bytes
    cache = PrefixCache(max_entries=100, max_bytes=2 * one)
    for token in range(5):
        cache.insert(kv_of([token, 2, 3]), [token, 2, 3], epoch=0)
    assert (cache.stats.entries, cache.stats.size_bytes) == (2, 2 * one)
    nothing = PrefixCache(max_entries=100, max_bytes=0)
    nothing.insert(kv_of([1]), [1], epoch=0)
    assert nothing.stats.entries == 0


def test_flush_drops_all_and_counts_anew(cache: PrefixCache) -> None:
    cache.insert(kv_of([1]), [1], epoch=0)
    cache.insert(kv_of([2]), [2], epoch=0)
    filled(cache, [1, 2])
    assert cache.flush() == 2
    assert cache.stats == CacheStats()
    assert filled(cache, [1, 2]) == []
    assert repr(cache) == "<PrefixCache 0 entries 0 bytes>"


def test_a_flush_counts_what_the_commit_before_it_dropped(cache: PrefixCache) -> None:
    cache.insert(kv_of([1]), [1], epoch=0)
    cache.insert(kv_of([2]), [2], epoch=0)
    # Twice, as a commit that is rolled forward does.
    cache.keep_only(1)
    cache.keep_only(1)
    assert (cache.stats.entries, cache.stats.size_bytes) == (0, 0)
    assert cache.flush() == 2
    assert cache.flush() == 0


@pytest.mark.parametrize("use", ["fill", "insert"])
def test_what_a_commit_dropped_is_forgotten_once_the_cache_is_used(
    use: str, cache: PrefixCache
) -> None:
    cache.insert(kv_of([1]), [1], epoch=0)
    cache.keep_only(1)
    if use == "fill":
        assert filled(cache, [1, 2], epoch=1) == []
    else:
        cache.insert(kv_of([5]), [5], epoch=1)
    assert cache.flush() == (use == "insert")


async def test_a_hit_changes_no_token(engine: EmbeddedEngine) -> None:
    first = await chunks_of(submit(engine, PROMPT, max_new_tokens=10))
    again = await chunks_of(submit(engine, PROMPT, max_new_tokens=10))
    longer = PROMPT + tokens_of(first)[:4]
    further = await chunks_of(submit(engine, longer, max_new_tokens=6))
    assert {chunk.cached_tokens for chunk in first} == {0}
    assert {chunk.cached_tokens for chunk in again} == {len(PROMPT) - 1}
    assert {chunk.cached_tokens for chunk in further} == {len(longer) - 1}
    assert tokens_of(again) == tokens_of(first)
    assert tokens_of(further) == tokens_of(first)[4:]
    assert (engine.cache_stats.hits, engine.cache_stats.misses) == (2, 1)
    assert await engine.flush() == 1
    assert engine.cache_stats == CacheStats()


async def test_a_text_that_branches_off_reuses_what_it_shares(engine: EmbeddedEngine) -> None:
    branch = [*PROMPT[:12], *random_ids(9, seed=4)]
    alone = await generate(engine, branch, max_new_tokens=8)
    await engine.flush()
    await generate(engine, PROMPT, max_new_tokens=8)
    chunks = await chunks_of(submit(engine, branch, max_new_tokens=8))
    assert chunks[0].cached_tokens == 12
    assert tokens_of(chunks) == alone


async def test_nothing_is_reused_across_a_commit(checkpoint: Make) -> None:
    a, b = checkpoint(arch="qwen3"), checkpoint(arch="qwen3", seed=1)
    async with EmbeddedEngine.from_directory(b) as fresh:
        wanted = await generate(fresh, PROMPT, max_new_tokens=10)
    async with EmbeddedEngine.from_directory(a) as engine:
        await generate(engine, PROMPT, max_new_tokens=10)
        assert engine.cache_stats.entries == 1
        await engine.pause(PauseMode.ABORT)
        await load_while_paused(engine, b, WeightStamp(epoch=1))
        assert engine.cache_stats.entries == 0
        await engine.resume()
        chunks = await chunks_of(submit(engine, PROMPT, max_new_tokens=10))
    assert chunks[0].cached_tokens == 0
    assert tokens_of(chunks) == wanted


async def test_kv_of_two_epochs_never_enters(checkpoint: Make) -> None:
    a, b = checkpoint(arch="qwen3"), checkpoint(arch="qwen3", seed=1)
    async with EmbeddedEngine.from_directory(a) as engine:
        gate = Turnstile(engine, passes=3)
        generation = submit(engine, PROMPT, max_new_tokens=10)
        await gate.reached()
        pausing = asyncio.ensure_future(engine.pause(PauseMode.IN_PLACE))
        await anyio.lowlevel.checkpoint()
        gate.open()
        await pausing
        await load_while_paused(engine, b, WeightStamp(epoch=1))
        await engine.resume()
        chunks = await chunks_of(generation)
        assert {chunk.stamp.epoch for chunk in chunks} == {0, 1}
        assert engine.cache_stats.entries == 0


@pytest.mark.parametrize("mode", [PauseMode.IN_PLACE, None])
async def test_a_request_that_runs_through_a_flush_never_enters(
    mode: PauseMode | None, engine: EmbeddedEngine
) -> None:
    gate = Turnstile(engine, passes=3)
    generation = submit(engine, PROMPT, max_new_tokens=10)
    await gate.reached()
    tasks: list[asyncio.Future[object]] = []
    if mode is not None:
        tasks.append(asyncio.ensure_future(engine.pause(mode)))
    tasks.append(asyncio.ensure_future(engine.flush()))
    tasks.append(asyncio.ensure_future(engine.resume()))
    await anyio.lowlevel.checkpoint()
    gate.open()
    await asyncio.gather(*tasks)
    assert len(tokens_of(await chunks_of(generation))) == 10
    assert engine.cache_stats.entries == 0
    await generate(engine, PROMPT, max_new_tokens=10)
    assert engine.cache_stats.entries == 1


async def test_a_retracted_request_enters_with_what_it_recomputed(engine: EmbeddedEngine) -> None:
    whole = await generate(engine, PROMPT, max_new_tokens=10)
    gate = Turnstile(engine, passes=3)
    generation = submit(engine, PROMPT, max_new_tokens=10)
    await gate.reached()
    tasks: list[asyncio.Future[object]] = [
        asyncio.ensure_future(engine.pause(PauseMode.RETRACT)),
        asyncio.ensure_future(engine.flush()),
        asyncio.ensure_future(engine.resume()),
    ]
    await anyio.lowlevel.checkpoint()
    gate.open()
    await asyncio.gather(*tasks)
    chunks = await chunks_of(generation)
    assert tokens_of(chunks) == whole
    # What it found at its first start is what it reports, not what a restart found.
    assert {chunk.cached_tokens for chunk in chunks} == {len(PROMPT) - 1}
    assert engine.cache_stats.entries == 1
    again = await chunks_of(submit(engine, PROMPT, max_new_tokens=10))
    assert again[0].cached_tokens == len(PROMPT) - 1
    assert tokens_of(again) == whole


async def test_long_texts_stay_out_where_rope_depends_on_the_length(checkpoint: Make) -> None:
    directory = checkpoint(rope={"rope_type": "dynamic", "factor": 4.0}, max_position_embeddings=16)
    long, short = random_ids(30, seed=5), random_ids(6, seed=6)
    async with EmbeddedEngine.from_directory(directory) as engine:
        for ids, entries in ((long, 0), (short, 1)):
            first = await chunks_of(submit(engine, ids, max_new_tokens=20))
            assert engine.cache_stats.entries == entries
            again = await chunks_of(submit(engine, ids, max_new_tokens=20))
            assert again[0].cached_tokens == (len(ids) - 1) * entries
            assert tokens_of(again) == tokens_of(first)
