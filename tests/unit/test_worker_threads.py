"""Work on worker threads that ends in ways that asyncio takes for its own."""

from __future__ import annotations

import asyncio

import pytest

from hotswap.uninterrupted import on_worker_thread


@pytest.mark.parametrize(
    "kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, BaseException]
)
async def test_what_ends_a_worker_thread_in_any_way_is_an_exception(
    kind: type[BaseException],
) -> None:
    def work(text: str) -> None:
        raise kind(text)

    with pytest.raises(RuntimeError, match=f"ended with {kind.__name__}: enough") as caught:
        await on_worker_thread(work, "enough")
    assert isinstance(caught.value.__cause__, kind)
