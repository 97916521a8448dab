"""Tensors that a trainer pushes: read without executing anything, and written without sglang.

See docs/explanation/security.md for what this holds against whom.
"""

from __future__ import annotations

from hotswap.wire.bucket import FLATTENED, Sent, decode
from hotswap.wire.budget import Budget, Limits
from hotswap.wire.pushed import Pushed
from hotswap.wire.ranks import chosen, payload_bytes
from hotswap.wire.received import Received, take_back
from hotswap.wire.refused import PayloadRefused
from hotswap.wire.segments import opened
from hotswap.wire.sending import flattened_bucket, named_tensors, per_rank
from hotswap.wire.sent import CudaStorage, SentTensor, SharedStorage
from hotswap.wire.strategy import PUSHED, PushStrategy, push_update

__all__ = [
    "FLATTENED",
    "PUSHED",
    "Budget",
    "CudaStorage",
    "Limits",
    "PayloadRefused",
    "PushStrategy",
    "Pushed",
    "Received",
    "Sent",
    "SentTensor",
    "SharedStorage",
    "chosen",
    "decode",
    "flattened_bucket",
    "named_tensors",
    "opened",
    "payload_bytes",
    "per_rank",
    "push_update",
    "take_back",
]
