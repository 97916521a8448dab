"""Modules compiled by inductor: one that reads its weights, one that has folded them in."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest
import torch
from torch import nn

from hotswap.embed import HotSwap
from hotswap.errors import UpdateRejected
from hotswap.weights.compiled import refuse_frozen
from tests.unit.embed.modules import checkpoint, filled, output

# torch warns of itself when its compiler is imported.
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:`torch.jit.*:DeprecationWarning"),
]


@pytest.fixture
def inductor() -> ModuleType:
    """Its settings. Imported late: every run of the other tests reads this file too."""
    return importlib.import_module("torch._inductor.config")


async def test_compiled_by_inductor_a_module_computes_with_the_new_weights(tmp_path: Path) -> None:
    module = cast(nn.Module, torch.compile(filled(1.0)))
    assert output(module) == 16.0
    async with HotSwap(module) as swap:
        for name, value in (("b", 2.0), ("c", 3.0)):
            await swap.update(checkpoint(tmp_path / name, value))
            async with swap.gate:
                assert output(module) == 16 * value**2


def test_with_its_weights_folded_in_a_module_is_refused_and_would_keep_the_old_ones(
    inductor: ModuleType,
) -> None:
    module = filled(1.0)
    ones = torch.ones(1, 4)
    with torch.no_grad(), inductor.patch(freezing=True):
        compiled = cast(nn.Module, torch.compile(module))
        before = compiled(ones).clone()
        for weight in module.parameters():
            weight.fill_(2.0)
        # The reason for the refusal: the compiled code has not seen that.
        assert torch.equal(compiled(ones), before)
    with pytest.raises(UpdateRejected, match="the whole module: compiled with freezing"):
        HotSwap(compiled)


def test_a_layer_that_is_compiled_in_place_with_its_weights_folded_in_is_refused() -> None:
    module = filled(1.0)
    module[0].compile(options={"freezing": True})
    with pytest.raises(UpdateRejected, match=r"^0: compiled with freezing"):
        refuse_frozen(module)
    refuse_frozen(module[1])


def test_one_that_is_compiled_before_freezing_is_switched_on_is_refused_while_it_is_on(
    inductor: ModuleType,
) -> None:
    module = cast(nn.Module, torch.compile(filled(1.0)))
    refuse_frozen(module)
    with inductor.patch(freezing=True), pytest.raises(UpdateRejected, match="the whole module"):
        refuse_frozen(module)
