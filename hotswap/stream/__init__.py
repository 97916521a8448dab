"""Published weight streams: read them, write them, keep a local checkpoint at a version.

Works without the server, and without torch. The format is that of slime and miles.
"""

from __future__ import annotations

from hotswap.stream.errors import (
    BaseChanged,
    DeltaDamaged,
    DiskFull,
    LocalBusy,
    LocalDamaged,
    LocalDiskFailed,
    NotPulled,
    OutOfOrder,
    OutsideRoots,
    PullPending,
    SourceNotReady,
    SourceUnusable,
    StreamError,
    UnknownEncoding,
    VersionMalformed,
    VersionMissing,
)
from hotswap.stream.layout import directory_of, published_versions
from hotswap.stream.look import PreRead
from hotswap.stream.materialize import materialize
from hotswap.stream.plain_reading import reading
from hotswap.stream.progress import Progress
from hotswap.stream.publisher import publish_delta
from hotswap.stream.publisher_prune import Pruned, prune
from hotswap.stream.publisher_ranks import TorchRanks
from hotswap.stream.publisher_trainer import Published, Publisher
from hotswap.stream.pull import pull
from hotswap.stream.report import Keep, PullMode, PullReport
from hotswap.stream.survey import SourceSurvey, VersionSurvey, survey_source
from hotswap.stream.survey_local import LocalSurvey, survey_local
from hotswap.stream.verified import Fault, Verified
from hotswap.stream.verify_local import verify_local
from hotswap.stream.verify_source import verify_source

__all__ = [
    "BaseChanged",
    "DeltaDamaged",
    "DiskFull",
    "Fault",
    "Keep",
    "LocalBusy",
    "LocalDamaged",
    "LocalDiskFailed",
    "LocalSurvey",
    "NotPulled",
    "OutOfOrder",
    "OutsideRoots",
    "PreRead",
    "Progress",
    "Pruned",
    "Published",
    "Publisher",
    "PullMode",
    "PullPending",
    "PullReport",
    "SourceNotReady",
    "SourceSurvey",
    "SourceUnusable",
    "StreamError",
    "TorchRanks",
    "UnknownEncoding",
    "Verified",
    "VersionMalformed",
    "VersionMissing",
    "VersionSurvey",
    "directory_of",
    "materialize",
    "prune",
    "publish_delta",
    "published_versions",
    "pull",
    "reading",
    "survey_local",
    "survey_source",
    "verify_local",
    "verify_source",
]
