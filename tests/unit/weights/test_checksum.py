"""Checksums are of elements in row-major order, wherever they lie."""

from __future__ import annotations

import pytest
import torch
import xxhash

from hotswap.weights.checksum import checksum


def test_it_is_xxh3_64_of_the_bytes() -> None:
    tensor = torch.arange(6, dtype=torch.int16)
    assert checksum(tensor) == xxhash.xxh3_64_hexdigest(tensor.numpy().tobytes())
    assert len(checksum(tensor)) == 16


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.complex64, torch.int64]
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 5)])
def test_every_dtype_and_shape_has_one(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape, dtype=dtype)
    raw = bytes(tensor.reshape(-1).view(torch.uint8).tolist())
    assert checksum(tensor) == xxhash.xxh3_64_hexdigest(raw)


def test_strides_do_not_count() -> None:
    tensor = torch.randn(8, 6)
    assert checksum(tensor.t()) == checksum(tensor.t().contiguous()) != checksum(tensor)
    assert checksum(tensor[1::2, 2:]) == checksum(tensor[1::2, 2:].clone())
    assert checksum(tensor[:1, 0][:, None][:, :1]) == checksum(tensor[0, :1])
    assert checksum(tensor[0, ::2][:1]) == checksum(tensor[0, :1])
    assert checksum(tensor[:1].expand(4, 6)) == checksum(tensor[:1].repeat(4, 1))


@pytest.mark.parametrize("shape", [(3, 5 * 2**20), (4099, 5000)])
def test_a_big_strided_tensor_is_read_in_pieces(shape: tuple[int, int]) -> None:
    tensor = torch.arange(shape[0] * shape[1], dtype=torch.int32).view(shape[1], shape[0]).t()
    assert not tensor.is_contiguous()
    assert checksum(tensor) == checksum(tensor.contiguous())


def test_a_tensor_without_bytes_has_none() -> None:
    with pytest.raises(ValueError, match="meta"):
        checksum(torch.ones(2, device="meta"))
