"""Keys and values of one request: a buffer of its own that grows in blocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["KvCache", "KvShape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShape:
    """What one token's keys and values look like, and where they live."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        """Memory of one token."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    def allocate(self, capacity: int) -> torch.Tensor:
        """``[layers x 2 x kv_heads x capacity x head_dim]``, not initialised."""
        sizes = (self.num_layers, 2, self.num_kv_heads, capacity, self.head_dim)
        return torch.empty(sizes, dtype=self.dtype, device=self.device)


class KvCache:
    """Keys and values of the first ``length`` tokens of one text.

    Owned by one request, or by the prefix cache once trimmed. ``reserve`` makes
    room, every layer stores its rows, and ``advance`` counts them in.
    """

    BLOCK = 128

    def __init__(self, shape: KvShape) -> None:
        self._shape = shape
        self._buffer = shape.allocate(0)
        self.length: int = 0

    def __repr__(self) -> str:
        return f"<KvCache {self.length} of {self.capacity} tokens>"

    @property
    def capacity(self) -> int:
        """Tokens for which there is memory."""
        return self._buffer.shape[3]

    @property
    def shape(self) -> KvShape:
        """What one token's keys and values look like."""
        return self._shape

    @property
    def size_bytes(self) -> int:
        """Bytes of the buffer."""
        return self._buffer.numel() * self._buffer.element_size()

    @classmethod
    def rounded(cls, length: int) -> int:
        """Tokens that memory is taken for to hold ``length`` of them."""
        return -(-length // cls.BLOCK) * cls.BLOCK

    def reserve(self, length: int) -> None:
        """Make room for ``length`` tokens in all; what is stored stays."""
        if length <= self.capacity:
            return
        grown = self._shape.allocate(self.rounded(length))
        grown[:, :, :, : self.length] = self._buffer[:, :, :, : self.length]
        self._buffer = grown

    def store(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Append ``[kv_heads x new x head_dim]`` to ``layer``; counted by ``advance``."""
        stop = self.length + keys.shape[1]
        self._buffer[layer, 0, :, self.length : stop] = keys
        self._buffer[layer, 1, :, self.length : stop] = values

    def layer(self, layer: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the keys and the values, each ``[kv_heads x length x head_dim]``."""
        return self._buffer[layer, 0, :, :length], self._buffer[layer, 1, :, :length]

    def rows(self, start: int, stop: int) -> tuple[torch.Tensor, ...]:
        """For each layer a view ``[2 x kv_heads x stop - start x head_dim]``: keys, then values."""
        return self._buffer[:, :, :, start:stop].unbind(0)

    def advance(self, count: int) -> None:
        """Count ``count`` tokens in, once every layer has stored them."""
        self.length += count

    def copy_from(self, other: KvCache, length: int) -> None:
        """Take on ``other``'s tokens up to ``length``, past those that are here already.

        Both are of texts that begin alike, as far as ``length``.
        """
        self.reserve(length)
        new = slice(self.length, length)
        self._buffer[:, :, :, new] = other._buffer[:, :, :, new]
        self.length = length

    def trimmed(self) -> KvCache:
        """A copy without spare capacity."""
        copy = KvCache(self._shape)
        copy._buffer = self._buffer[:, :, :, : self.length].clone()
        copy.length = self.length
        return copy
