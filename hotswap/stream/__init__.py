"""Published weight streams: read them, write them, keep a local checkpoint at a version.

Works without the server, and without torch. The format is that of slime and miles.
"""

from __future__ import annotations

from hotswap.stream.errors import (
    DeltaDamaged,
    DiskFull,
    LocalDamaged,
    LocalDiskFailed,
    OutOfOrder,
    OutsideRoots,
    PullPending,
    SourceNotReady,
    StreamError,
    UnknownEncoding,
    VersionMalformed,
    VersionMissing,
)
from hotswap.stream.layout import directory_of, published_versions
from hotswap.stream.lock import reading
from hotswap.stream.progress import Progress
from hotswap.stream.publisher import publish_delta
from hotswap.stream.publisher_prune import Pruned, prune
from hotswap.stream.publisher_ranks import TorchRanks
from hotswap.stream.publisher_trainer import Published, Publisher
from hotswap.stream.pull import pull
from hotswap.stream.report import PullMode, PullReport

__all__ = [
    "DeltaDamaged",
    "DiskFull",
    "LocalDamaged",
    "LocalDiskFailed",
    "OutOfOrder",
    "OutsideRoots",
    "Progress",
    "Pruned",
    "Published",
    "Publisher",
    "PullMode",
    "PullPending",
    "PullReport",
    "SourceNotReady",
    "StreamError",
    "TorchRanks",
    "UnknownEncoding",
    "VersionMalformed",
    "VersionMissing",
    "directory_of",
    "prune",
    "publish_delta",
    "published_versions",
    "pull",
    "reading",
]
