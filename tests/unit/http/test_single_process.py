from typing import Any

import pytest

from hotswap.http.single_process import ManyWorkers, other_workers, refuse_many_workers
from hotswap.testing.fake_commands import FakeCommands


def test_this_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEB_CONCURRENCY", raising=False)

    assert other_workers() is None
    refuse_many_workers()


async def test_the_app_refuses_to_start_among_others(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "2")
    serving = serve()
    assert isinstance(serving.commands, FakeCommands)

    with pytest.raises(ManyWorkers, match="WEB_CONCURRENCY is 2, wanted one"):
        async with serving.app.router.lifespan_context(serving.app):
            raise AssertionError("it started")


async def test_the_app_starts_alone(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEB_CONCURRENCY", raising=False)

    async with serving.app.router.lifespan_context(serving.app):
        assert (await serving.json("GET", "/health"))[0] == 200
