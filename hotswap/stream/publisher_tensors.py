"""A trainer's tensors as bytes on the host, one after the other.

Rule: a tensor of a GPU is on its way to pinned memory while the ones before it are
compared, so that the copy costs no time of its own. torch is imported when it is needed.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hotswap.stream.errors import StreamError
from hotswap.stream.frames import Bytes
from hotswap.stream.stored import is_text

if TYPE_CHECKING:
    import torch

__all__ = ["HostTensor", "NamedTensors", "host_tensors", "size_of", "tensor_of", "width_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTensor:
    """One tensor: its dtype as safetensors calls it, its shape, and its bytes.

    ``content`` may be the trainer's own memory: read it before the next step changes it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    content: Bytes

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return len(self.content)


Value: TypeAlias = "torch.Tensor | NDArray[Any] | HostTensor"

NamedTensors: TypeAlias = "Mapping[str, Value] | Iterable[tuple[str, Value]]"
"""Tensors by name: a state dict, or an iterable that makes them one at a time."""


def width_of(dtype: str) -> int:
    """Bytes an element of a dtype of safetensors, for ``gap``: 1, 2, 4 or 8."""
    bits = re.search(r"\d+", dtype)
    return 1 if bits is None else min(8, max(1, int(bits[0]) // 8))


def size_of(named: NamedTensors) -> int:
    """Bytes of all tensors, where that is known before they are there."""
    values = named.values() if isinstance(named, Mapping) else ()
    return sum(map(_bytes_of, values))


def _bytes_of(value: object) -> int:
    try:
        return int(getattr(value, "nbytes", 0))
    except RuntimeError:  # of a sparse tensor, which is refused when its turn comes
        return 0


def host_tensors(named: NamedTensors, *, ahead: int = 2) -> Iterator[HostTensor]:
    """Each of ``named`` in order; copies of ``ahead`` tensors of a GPU are under way.

    Raises: StreamError for a name that comes twice or a dtype that safetensors lacks;
    TypeError for what is no tensor.
    """
    waiting = deque[Callable[[], HostTensor]]()
    seen = set[str]()
    for name, value in named.items() if isinstance(named, Mapping) else named:
        if name in seen:
            raise StreamError(f"tensor {name!r:.200} comes twice, wanted each name once")
        _check_name(name)
        seen.add(name)
        waiting.append(_started(name, value))
        if len(waiting) > ahead:
            yield waiting.popleft()()
    while waiting:
        yield waiting.popleft()()


def _check_name(name: object) -> None:
    """Raises: TypeError, StreamError for what no reader could read back."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a tensor is {name!r:.200}, wanted a text")
    if name == "__metadata__" or not is_text(name):
        raise StreamError(
            f"tensor {name!a:.200} cannot be published: the format keeps __metadata__ for itself, "
            "and names are UTF-8; rename it"
        )


def _started(name: str, value: object) -> Callable[[], HostTensor]:
    if isinstance(value, HostTensor):
        there = value
        return lambda: there
    import torch

    if isinstance(value, np.ndarray):
        value = tensor_of(value)
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f"tensor {name!r:.200} is a {type(value).__name__}, wanted a torch.Tensor or a numpy "
            "array"
        )
    if value.is_meta or value.is_nested or value.layout is not torch.strided:
        seen = "nested" if value.is_nested else f"{value.layout} on {value.device}"
        raise StreamError(
            f"tensor {name!r:.200} is {seen}, wanted one whose elements lie in memory, each at its "
            "place (torch.strided)"
        )
    value = value.resolve_conj().resolve_neg()  # the bytes in memory are other ones
    dtype, shape = _dtype_name(name, value), tuple(value.shape)
    solid = value.detach().contiguous()
    # One element, or none, is contiguous with any stride, which a view of bytes is refused for.
    flat = solid.as_strided((solid.numel(),), (1,)).view(torch.uint8)
    arrived = _copied(flat) if flat.is_cuda else (lambda: flat)

    def host() -> HostTensor:
        content: Bytes = arrived().numpy()
        return HostTensor(name=name, dtype=dtype, shape=shape, content=content)

    return host


def tensor_of(array: NDArray[Any]) -> torch.Tensor:
    """``array`` for who only reads: its own memory, or a copy where torch takes no view of it."""
    import torch

    # torch takes no array that may not be written to, although nobody writes here.
    whole = array.flags.c_contiguous and array.flags.writeable
    return torch.from_numpy(array if whole else array.copy())


def _dtype_name(name: str, value: torch.Tensor) -> str:
    from hotswap.weights.safetensors_header import DTYPES

    found = [known for known, dtype in DTYPES.items() if dtype == value.dtype]
    if not found:
        raise StreamError(
            f"tensor {name!r:.200} is of {value.dtype}, wanted a dtype of safetensors "
            f"({', '.join(DTYPES)})"
        )
    return found[0]


def _copied(flat: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Begin to copy to pinned memory, beside what the GPU does; wait for it when called."""
    import torch

    copies = _side_stream(flat.device)
    copies.wait_stream(torch.cuda.current_stream(flat.device))
    with torch.cuda.stream(copies):
        # torch keeps pinned memory that was let go, and gives it out again.
        host = torch.empty(flat.shape, dtype=torch.uint8, pin_memory=True)
        host.copy_(flat, non_blocking=True)
        flat.record_stream(copies)
        arrived = copies.record_event()

    def wait() -> torch.Tensor:
        arrived.synchronize()
        return host

    return wait


def _side_stream(device: torch.device) -> torch.cuda.Stream:
    import torch

    if device not in _side_streams:
        stream: Callable[..., torch.cuda.Stream] = torch.cuda.Stream
        _side_streams[device] = stream(device)
    return _side_streams[device]


_side_streams: dict[torch.device, torch.cuda.Stream] = {}
