"""Plug-ins written into a folder of their own, as an installer would leave them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, PathDistribution
from pathlib import Path
from typing import TypeAlias

import pytest

__all__ = ["API", "GOOD", "Install", "install"]

Install: TypeAlias = Callable[..., EntryPoint]
"""Takes the name of a dist and the code of its module; also ``version`` and ``target``."""

API = "hotswap_api_version = 1\n"
GOOD = (
    API
    + """
from starlette.responses import PlainTextResponse
from hotswap.http import Kind, KindedRoute
from hotswap.options import Option

seen = []

from prometheus_client import Counter

reads = Counter("hotswap_rsync_reads_total", "Reads.", registry=None)

async def hello(request):
    return PlainTextResponse("hello")

def hotswap_strategies():
    return {"rsync": lambda values: None}

def hotswap_engines():
    return {"toy": lambda values: None}

def hotswap_options():
    return [Option(name="rsync-host", help="where from"), Option(name="fast", help="", type=bool)]

def hotswap_routes():
    return [KindedRoute("/rsync", hello, kind=Kind.CONTROL, methods=["POST"])]

def hotswap_metrics():
    return [reads]

async def hotswap_pre_read(source):
    seen.append(source)

async def hotswap_post_write(version, directory):
    seen.append((version, directory))

def hotswap_changed(change):
    seen.append(change)
"""
)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Write a dist with one module and return its entry point."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    written: list[str] = []

    def write(dist: str, code: str, *, version: str = "1.0", target: str = "") -> EntryPoint:
        module = dist.replace("-", "_") + "_under_test"
        (site / f"{module}.py").write_text(code)
        folder = site / f"{dist.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n"
        )
        (folder / "entry_points.txt").write_text(f"[hotswap]\nit = {target or module}\n")
        written.append(module)
        [entry_point] = PathDistribution(folder).entry_points
        return entry_point

    yield write
    for module in written:
        sys.modules.pop(module, None)
