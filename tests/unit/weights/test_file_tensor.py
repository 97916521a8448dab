"""Errors of a tensor in a file name it, and carry no number that is none."""

import errno
import os
from pathlib import Path

import pytest
import torch

from hotswap.types import TensorSpec
from hotswap.weights.file_tensor import FileTensor
from hotswap.weights.folder import OpenFile

SPEC = TensorSpec(name="w", dtype=torch.float32, shape=(4,))


def test_a_short_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"\0" * 8)
    with (
        OpenFile(os.open(path, os.O_RDONLY), name="f") as file,
        pytest.raises(OSError, match=r"^tensor 'w': f ends at byte 8") as caught,
    ):
        FileTensor(SPEC, file=file, offset=0).read_into(torch.empty(4))
    assert caught.value.errno is None


def test_an_error_of_the_system_keeps_its_number(tmp_path: Path) -> None:
    write_only = os.open(tmp_path / "f", os.O_WRONLY | os.O_CREAT)
    with (
        OpenFile(write_only, name="f") as file,
        pytest.raises(OSError, match="tensor 'w'") as caught,
    ):
        FileTensor(SPEC, file=file, offset=0).read_into(torch.empty(4))
    assert caught.value.errno == errno.EBADF
    assert caught.value.strerror == "tensor 'w': Bad file descriptor"
