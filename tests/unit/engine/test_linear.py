from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from hotswap.engine import linear as module
from hotswap.engine.linear import linear


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("tokens", [1, 3, 17])
def test_widened_product_rounds_once(
    tokens: int, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Blocks of 5 rows of 48 columns: the last of 37 rows is a short one.
    monkeypatch.setattr(module, "_SCRATCH_NUMEL", 5 * 48)
    monkeypatch.setattr(module, "_NATIVE_TOKENS", 0)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    inputs, weight = drawn(tokens, 48, seed=1), drawn(37, 48, seed=2)
    bias = drawn(37, seed=3) if biased else None
    exact = functional.linear(
        inputs.double(), weight.double(), None if bias is None else bias.double()
    )
    seen = linear(inputs, weight, bias)
    assert seen.dtype is torch.bfloat16
    # Half a unit in the last place of bfloat16 is 2**-9 of the value.
    torch.testing.assert_close(seen.double(), exact, rtol=2**-8, atol=1e-4)


def test_the_scratch_grows_for_a_wider_matrix() -> None:
    for columns in (8, 2**20 + 8):
        inputs = torch.ones(4, columns, dtype=torch.bfloat16)
        weight = torch.ones(2, columns, dtype=torch.bfloat16)
        seen = module._widened(inputs, weight, None)
        assert seen.float().tolist() == [[torch.tensor(columns).bfloat16().item()] * 2] * 4
