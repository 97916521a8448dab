"""A tensor that lies in an open file until somebody wants its bytes."""

from __future__ import annotations

from collections.abc import Sequence

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
        if tuple(out.shape) != self._spec.shape or not out.is_contiguous():
            raise ValueError(
                f"{self._spec} cannot be read into {list(out.shape)} with strides "
                f"{list(out.stride())} (contiguous memory of the same shape is wanted)"
            )
        self.read_piece(out.view(-1), 0)

    def read_piece(self, out: torch.Tensor, start: int) -> None:
        """Fill 1-D ``out`` with row-major elements from ``start`` on; as ``read_into``."""
        self._check(out, start)
        if not out.numel():
            return
        try:
            self._file.read_at(self._offset + start * self._spec.dtype.itemsize, _bytes(out))
        except OSError as error:
            message = f"tensor {self._spec.name!r}: {error.strerror or error}"
            # With a number in front only where there is one.
            arguments = (message,) if error.errno is None else (error.errno, message)
            raise OSError(*arguments) from error

    def fits(self, out: torch.Tensor) -> bool:
        """Whether ``out`` can take the bytes as they are: CPU, contiguous, same dtype and shape."""
        return (
            out.device.type == "cpu"
            and out.dtype == self._spec.dtype
            and tuple(out.shape) == self._spec.shape
            and out.is_contiguous()
        )

    def adjoins(self, other: FileTensor) -> bool:
        """Whether ``other`` begins in the same file where this one ends."""
        end = self._offset + self._spec.size_bytes
        return other._file is self._file and other._offset == end

    def read_run(self, outs: Sequence[torch.Tensor]) -> None:
        """Fill ``outs[0]`` with this tensor and the others with those that follow it in the
        file, each of which ``fits``. Raises: OSError, naming the file alone."""
        self._file.read_at(self._offset, *map(_bytes, outs))

    def _check(self, out: torch.Tensor, start: int) -> None:
        inside = start >= 0 and start + out.numel() <= self._spec.numel
        plain = out.dim() == 1 and out.device.type == "cpu" and out.is_contiguous()
        if not inside or not plain or out.dtype != self._spec.dtype:
            raise ValueError(
                f"{self._spec} cannot be read from element {start} into {list(out.shape)} "
                f"{out.dtype} on {out.device} (contiguous CPU memory of the same dtype, within "
                "the tensor, is wanted)"
            )


def _bytes(out: torch.Tensor) -> memoryview:
    # numpy sees bytes where torch may refuse to (one element with an odd stride).
    view = out.detach().as_strided((out.numel(),), (1,)).view(torch.uint8)
    data: memoryview = view.numpy().data
    return data
