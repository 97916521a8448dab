"""hotswap's own wire for tensors, without a pickle: a safetensors body, or shared memory.

What a trainer sends to ``/hotswap/v1/push``: across machines the bytes themselves, on one
machine the name of the shared memory that they lie in.
"""

from __future__ import annotations

from hotswap.push.body import SafetensorsBody
from hotswap.push.described import (
    MAX_DESCRIPTION_BYTES,
    NONCE_BYTES,
    DescribedTensor,
    Description,
    Natural,
    Nonce,
    SegmentNotSeen,
    SharedPush,
)
from hotswap.push.incoming import Incoming
from hotswap.push.segment import SharedTensors
from hotswap.push.streamed import MAX_HEADER_BYTES, StreamedPush

__all__ = [
    "MAX_DESCRIPTION_BYTES",
    "MAX_HEADER_BYTES",
    "NONCE_BYTES",
    "DescribedTensor",
    "Description",
    "Incoming",
    "Natural",
    "Nonce",
    "SafetensorsBody",
    "SegmentNotSeen",
    "SharedPush",
    "SharedTensors",
    "StreamedPush",
]
