from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from hotswap.engine import linear as module
from hotswap.engine.linear import is_slow, linear


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("tokens", [3, 8, 17])
@pytest.mark.parametrize("block_rows", [5, 64])
def test_a_float32_product_with_a_narrow_weight_is_exact(
    block_rows: int, tokens: int, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Blocks of 48 columns: the last of 37 rows is a short one, or one block holds them all.
    monkeypatch.setattr(module, "_SCRATCH_NUMEL", block_rows * 48)
    inputs, weight = drawn(tokens, 48, seed=1).float() * 1.01, drawn(37, 48, seed=2)
    bias = drawn(37, seed=3) if biased else None
    exact = functional.linear(
        inputs.double(), weight.double(), None if bias is None else bias.double()
    )
    seen = linear(inputs, weight, bias)
    assert seen.dtype is torch.float32
    assert seen.is_contiguous()
    torch.testing.assert_close(seen.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tokens", [1, 2])
def test_one_token_or_two_take_the_native_product(tokens: int) -> None:
    inputs, weight = drawn(tokens, 48, seed=1), drawn(37, 48, seed=2)
    seen = linear(inputs.float(), weight)
    assert seen.dtype is torch.float32
    assert torch.equal(seen, functional.linear(inputs, weight).float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("capability", "slow"), [("AVX2", True), ("AVX512", False)])
def test_what_is_slow(
    capability: str, slow: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert is_slow(torch.zeros(1, dtype=dtype)) is slow
    assert not is_slow(torch.zeros(1))


def test_the_scratch_grows_for_a_wider_matrix() -> None:
    for columns in (8, 2**20 + 8):
        inputs = torch.ones(4, columns)
        weight = torch.ones(2, columns, dtype=torch.bfloat16)
        assert linear(inputs, weight).tolist() == [[columns] * 2] * 4
