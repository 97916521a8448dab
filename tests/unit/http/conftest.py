from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import pytest_asyncio
from starlette.applications import Starlette

from hotswap.http import create_app
from hotswap.plugins import Plugins
from hotswap.seams import LoadStrategy
from hotswap.settings import Settings
from hotswap.testing.fake_commands import FakeCommands
from hotswap.testing.scripted_engine import ScriptedEngine


def _no_strategy(_options: object) -> LoadStrategy:
    raise AssertionError("the fake controller opens no strategy")


@dataclass(slots=True, kw_only=True)
class Serving:
    """One app on fakes, with a client."""

    app: Starlette
    commands: FakeCommands
    engine: ScriptedEngine
    client: httpx.AsyncClient

    async def json(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        reply = await self.client.request(method, path, **options)
        return reply.status_code, reply.json()


@dataclass(slots=True)
class ServingFactory:
    made: list[Serving] = field(default_factory=list)

    def __call__(
        self,
        *,
        engine: ScriptedEngine | None = None,
        plugins: Plugins | None = None,
        **settings: Any,
    ) -> Serving:
        values: dict[str, Any] = {"allow_weight_update": True, "model": "/models/a"} | settings
        engine = engine or ScriptedEngine()
        commands = FakeCommands()
        plugins = plugins or Plugins(strategies={"disk": _no_strategy})
        app = create_app(commands, engine, Settings(**values), plugins=plugins)
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://hotswap.test"
        )
        serving = Serving(app=app, commands=commands, engine=engine, client=client)
        self.made.append(serving)
        return serving


@pytest_asyncio.fixture
async def serve() -> AsyncIterator[Callable[..., Serving]]:
    """Make apps on fakes; their clients are closed at the end."""
    factory = ServingFactory()
    yield factory
    for serving in factory.made:
        await serving.client.aclose()


@pytest.fixture
def serving(serve: Callable[..., Serving]) -> Serving:
    """An app with every route open."""
    return serve()
