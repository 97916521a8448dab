"""A tensor that lies in an open file until somebody wants its bytes."""

from __future__ import annotations

import torch

from hotswap.types import TensorSpec
from hotswap.weights.folder import OpenFile

__all__ = ["FileTensor"]


class FileTensor:
    """Row-major elements of ``spec`` from byte ``offset`` of ``file``; a ``Readable``.

    The checkpoint that made it owns the file; it reads nothing once that is closed.
    """

    __slots__ = ("_file", "_offset", "_spec")

    def __init__(self, spec: TensorSpec, *, file: OpenFile, offset: int) -> None:
        self._spec = spec
        self._file = file
        self._offset = offset

    def __repr__(self) -> str:
        return f"<FileTensor {self._spec} in {self._file.name}>"

    @property
    def spec(self) -> TensorSpec:
        """Name, dtype and shape."""
        return self._spec

    def read_into(self, out: torch.Tensor) -> None:
        """Fill ``out`` (contiguous, CPU, of ``spec``) straight from the file. Any thread.

        Raises: OSError naming file and tensor when not every byte can be delivered;
        ValueError when ``out`` is not what the tensor needs.
        """
        self._check(out)
        if not self._spec.size_bytes:
            return
        flat = out.detach().reshape(-1).view(torch.uint8)
        try:
            self._file.read_at(self._offset, flat.numpy().data)
        except OSError as error:
            raise OSError(error.errno, f"tensor {self._spec.name!r}: {error}") from error

    def _check(self, out: torch.Tensor) -> None:
        fits = (tuple(out.shape), out.dtype) == (self._spec.shape, self._spec.dtype)
        if not fits or out.device.type != "cpu" or not out.is_contiguous():
            raise ValueError(
                f"{self._spec} cannot be read into {list(out.shape)} {out.dtype} on {out.device} "
                "(contiguous CPU memory of the same shape and dtype is wanted)"
            )
