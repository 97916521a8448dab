"""What a server does last before it serves, so that no update and no token pays for it.

* A rehearsed update: its code is imported and the memory of its plan is there before
  the first real one, which then costs no more than those after it.
* Whatever lives by then lives as long as the process: the collector, which holds the
  interpreter lock for a quarter of a second to walk through torch's objects, need never
  look at it again. Any decode step could meet such a walk.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Mapping
from pathlib import Path

import torch

from hotswap.errors import HotswapError
from hotswap.fetch import Buckets, opened
from hotswap.seams import Engine, LoadStrategy
from hotswap.transaction import Transaction
from hotswap.types import Bucket, Payload, Placement, Scope, TensorSpec, Update
from hotswap.uninterrupted import on_worker_thread
from hotswap.weights.pieces import spec_of

__all__ = ["keep_out_of_collections", "rehearse"]

_log = logging.getLogger("hotswap.serve")


async def rehearse(engine: Engine, strategies: Mapping[str, LoadStrategy], directory: Path) -> bool:
    """Plan and stage ``directory`` without reading a tensor, and drop it; nothing is touched.

    Returns whether that went to its end. A checkpoint of torch's own format is left
    alone, for opening one reads it whole.
    """
    strategy = strategies.get("disk")
    if strategy is None or not await on_worker_thread(_has_safetensors, directory):
        return False
    update = Update(source=str(directory))
    try:
        async with opened(strategy, update, Placement()) as stage:
            plan = await on_worker_thread(engine.plan, stage.manifest, Scope.FULL)
            async with Transaction(engine, plan) as transaction:
                buckets = Buckets(stage)
                while (bucket := await buckets.next()) is not None:
                    await transaction.write(_unread(bucket))
    except HotswapError as error:
        # An update from where the model came from may well not be allowed.
        _log.info("no update was rehearsed: %s", error)
        return False
    return True


def _has_safetensors(directory: Path) -> bool:
    return any(directory.glob("*.safetensors"))


def keep_out_of_collections() -> None:
    """Collect once, and exempt what is left from all later collections."""
    gc.collect()
    gc.freeze()


class _Unread:
    """Stands for a payload and delivers nothing: the memory stays untouched."""

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec

    def __repr__(self) -> str:
        return f"<_Unread {self.spec.name}>"

    def read_into(self, out: torch.Tensor) -> None:
        """Leave ``out`` as it is."""


def _unread(bucket: Bucket) -> list[tuple[str, Payload]]:
    return [(name, _Unread(spec_of(name, payload))) for name, payload in bucket]
