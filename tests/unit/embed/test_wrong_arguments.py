"""What callers without a type checker pass: a clear error of ours, at the call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from hotswap.embed import HotSwap, HotSwapThread
from hotswap.types import Update, WeightStamp
from tests.unit.embed.modules import checkpoint, filled, output

NO_LABELS: dict[str, tuple[object, str]] = {
    "half a character": (
        "\ud800",
        r"is '\\ud800', which has half a character in it, wanted Unicode",
    ),
    "too long": ("7" * 4097, "has 4097 characters, wanted at most 4096"),
    "bytes": (b"7", "is a bytes, wanted a text"),
    "a list": ([7], "is a list, wanted a text"),
    "true": (True, "is a bool, wanted a text"),
    "a fraction": (7.5, "is a float, wanted a text"),
}


@pytest.mark.parametrize("label", NO_LABELS)
async def test_a_version_that_is_none_is_refused_as_over_http(label: str, tmp_path: Path) -> None:
    value, says = NO_LABELS[label]
    given: Any = value
    module, b = filled(1.0), checkpoint(tmp_path / "b", 2.0)
    with pytest.raises(ValueError, match=says):
        Update(source="b", version=given)
    with pytest.raises(ValueError, match=says):
        WeightStamp(version=given)
    async with HotSwap(module) as swap:
        with pytest.raises(ValueError, match=f"version {says}"):
            await swap.update(b, version=given)
        transport = httpx.ASGITransport(swap.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://hotswap.test") as client:
            status = (await client.get("/status")).json()
        assert status["weights"]["weight_version"] is None
        assert status["counters"]["updates"] == {}
        assert (await swap.update(b, version="7" * 4096)).stamp.version == "7" * 4096
    assert output(module) == 64.0


@pytest.mark.parametrize("strategy", [None, 5, [], b"disk", "\udcff", "d" * 4097])
def test_a_strategy_that_is_no_name_is_refused(strategy: object, tmp_path: Path) -> None:
    given: Any = strategy
    swap = HotSwapThread(HotSwap(filled(1.0)))
    with swap, pytest.raises(ValueError, match=r"^strategy (is|has) .*, wanted"):
        swap.update(tmp_path, strategy=given)


@pytest.mark.parametrize("module", [None, 5, "model", object()])
def test_what_is_no_module_is_refused(module: object) -> None:
    given: Any = module
    with pytest.raises(TypeError, match=r"module is a \w+, wanted the live torch.nn.Module"):
        HotSwap(given)
