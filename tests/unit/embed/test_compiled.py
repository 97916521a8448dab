"""Compiled modules: their weights keep their names, and updates reach the compiled code."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn

from hotswap.embed import HotSwap
from hotswap.errors import UpdateRejected
from hotswap.weights.compiled import plain_name, refuse_frozen
from tests.unit.embed.modules import checkpoint, filled, output


def whole(module: nn.Module) -> nn.Module:
    return cast(nn.Module, torch.compile(module, backend="eager"))


def one_layer(module: nn.Sequential) -> nn.Module:
    module[1] = whole(module[1])
    return module


def in_place(module: nn.Sequential) -> nn.Module:
    module.compile(backend="eager")
    return module


@pytest.mark.parametrize("compiled", [whole, one_layer, in_place])
async def test_a_compiled_module_computes_with_the_new_weights(
    compiled: object, tmp_path: Path
) -> None:
    torch.compiler.reset()
    assert callable(compiled)
    module: nn.Module = compiled(filled(1.0))
    assert output(module) == 16.0
    async with HotSwap(module) as swap:
        assert swap.engine.manifest().names == ("0.weight", "1.weight")
        assert (await swap.update(checkpoint(tmp_path / "b", 2.0))).tensors_applied == 2
        async with swap.gate:
            assert output(module) == 64.0
        assert set(await swap.engine.checksums()) == {"0.weight", "1.weight"}


def fold(module: nn.Module) -> None:
    """What inductor's freezing shows of itself; tests/long has the real one."""
    module.__dict__["get_compiler_config"] = lambda: {"freezing": True}


def test_a_module_with_its_weights_folded_in_is_refused_by_name() -> None:
    module = filled(1.0)
    fold(module[1])
    with pytest.raises(UpdateRejected, match=r"^1: compiled with freezing"):
        HotSwap(module)
    refuse_frozen(module[0])
    fold(module)
    with pytest.raises(UpdateRejected, match=r"^1, the whole module: compiled with freezing"):
        HotSwap(module)


async def test_a_module_that_is_compiled_so_later_is_refused_at_the_next_update(
    tmp_path: Path,
) -> None:
    module = filled(1.0)
    async with HotSwap(module) as swap:
        fold(module[0])
        with pytest.raises(UpdateRejected, match="compiled with freezing"):
            await swap.update(checkpoint(tmp_path / "b", 2.0))


def test_plain_names() -> None:
    assert plain_name("0.weight") == "0.weight"
    assert plain_name("_orig_mod.0._orig_mod.weight") == "0.weight"
