"""Another label and noise, on the engine that runs a model."""

from __future__ import annotations

import pytest

from hotswap.engine import EmbeddedEngine
from hotswap.seams import Resettable
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


async def test_a_commit_of_nothing_keeps_weights_and_prefixes(checkpoint: Make) -> None:
    prompt = random_ids(40)
    async with EmbeddedEngine.from_directory(
        checkpoint(), stamp=WeightStamp(version="1", epoch=4)
    ) as engine:
        first = await chunks_of(submit(engine, prompt, max_new_tokens=4))
        before = await engine.checksums()
        await engine.pause(PauseMode.IN_PLACE)
        await engine.commit(WeightStamp(version="2", epoch=4))
        await engine.resume()
        second = await chunks_of(submit(engine, prompt, max_new_tokens=4))

        assert await engine.checksums() == before
    assert tokens_of(second) == tokens_of(first)
    assert second[-1].cached_tokens > 0
    assert {chunk.stamp.version for chunk in first} == {"1"}
    assert {chunk.stamp.version for chunk in second} == {"2"}


async def test_a_running_request_carries_the_label_of_each_token(checkpoint: Make) -> None:
    async with EmbeddedEngine.from_directory(
        checkpoint(), stamp=WeightStamp(version="1")
    ) as engine:
        plain = await generate(engine, [1, 2, 3], max_new_tokens=8)
        turnstile = Turnstile(engine, passes=3)
        request = submit(engine, [1, 2, 3], max_new_tokens=8, rid="s")
        await turnstile.reached()
        turnstile.open()
        await engine.pause(PauseMode.IN_PLACE)
        await engine.commit(WeightStamp(version="2"))
        await engine.resume()
        chunks = await chunks_of(request)

    assert tokens_of(chunks) == plain
    versions = [chunk.stamp.version or "" for chunk in chunks if chunk.token_id is not None]
    assert versions == sorted(versions)
    assert set(versions) == {"1", "2"}


async def test_a_reset_needs_a_pause_and_a_full_load_undoes_it(checkpoint: Make) -> None:
    directory = checkpoint()
    async with EmbeddedEngine.from_directory(directory) as engine:
        assert isinstance(engine, Resettable)
        tokens = await generate(engine, [1, 2, 3], max_new_tokens=6)
        before = await engine.checksums()
        with pytest.raises(RuntimeError, match="pause the engine first"):
            await engine.reset_weights(())
        assert await engine.checksums() == before

        await engine.pause(PauseMode.ABORT)
        names = await engine.reset_weights(("norm",))
        spoilt = await engine.checksums()
        changed = {name for name in before if spoilt[name] != before[name]}
        assert changed == set(names)
        assert len(changed) > 3
        assert not [name for name in changed if "norm" in name or "inv_freq" in name]

        await load_while_paused(engine, directory, WeightStamp(epoch=1))
        await engine.resume()
        assert await engine.checksums() == before
        assert await generate(engine, [1, 2, 3], max_new_tokens=6) == tokens
