"""Whole payloads of every kind, for tests that damage them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from hotswap.wire import FLATTENED, flattened_bucket, named_tensors, payload_bytes, per_rank
from hotswap.wire.encoder import encode
from hotswap.wire.records import Items
from tests.unit.wire.senders import PROTOCOLS, forking
from tests.unit.wire.test_bucket import MIXED, a_bucket
from tests.unit.wire.test_tensors import X, a_tuple, on_device

__all__ = ["originals"]


@contextmanager
def originals() -> Iterator[list[tuple[str | None, bytes]]]:
    """Load format and payload of each; their shared memory lasts as long as the block."""
    payloads: list[tuple[str | None, bytes]] = []
    kept: list[object] = []
    listed = [
        ("a", X.clone()),
        ("b", torch.nn.Parameter(X[0].t().clone())),
        ("c", torch.empty(0, 3)),
    ]
    with ExitStack() as held:
        for protocol in PROTOCOLS:
            bucket, value = a_bucket(protocol=protocol)
            kept.append(value)
            payloads += [(FLATTENED, bucket), (None, forking(listed, protocol))]
        texts = {
            FLATTENED: flattened_bucket(MIXED),
            None: named_tensors(listed),
            "direct": per_rank([("a", [X])]),
        }
        payloads += [
            (load_format, payload_bytes(held.enter_context(text)))
            for load_format, text in texts.items()
        ]
        payloads.append((None, encode(Items([a_tuple("w", on_device())]))))
        yield payloads
    kept.clear()
