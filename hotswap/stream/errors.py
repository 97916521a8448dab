"""What can be wrong with a published stream, a version of it, or the local copy.

Rule: the live weights are untouched by all of these, and the local checkpoint is
the version that it was, unless the message says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from hotswap.errors import UpdateRejected

__all__ = [
    "BaseChanged",
    "DeltaDamaged",
    "DiskFull",
    "LocalBusy",
    "LocalDamaged",
    "LocalDiskFailed",
    "NotPulled",
    "OutOfOrder",
    "OutsideRoots",
    "PullPending",
    "SourceNotReady",
    "SourceUnusable",
    "StreamError",
    "UnknownEncoding",
    "VersionMalformed",
    "VersionMissing",
    "raised_as",
    "without_advice",
]


class StreamError(UpdateRejected):
    """Base of everything that is wrong with a stream or its local copy.

    ``local_version`` is the whole version that the local checkpoint is at after a
    pull that failed; None when it holds none, or when no pull was running. ``holds`` says
    so in words, and the message ends with it.
    """

    local_version: int | None = None
    holds: str | None = None

    def __str__(self) -> str:
        said = super().__str__()
        return said if self.holds is None else f"{said}; {self.holds}"


class SourceNotReady(StreamError):
    """A version is not, or not yet wholly, visible at the source.

    ``absent``: the source was asked, and nothing of the version is there.
    """

    retryable = True
    absent: bool = False


class SourceUnusable(StreamError):
    """What was given as a source can be none, or cannot be used as it is.

    A file, a checkpoint; an object store whose extra, credentials or bucket are missing.
    """


class VersionMissing(StreamError):
    """A version between what is applied and the target is not there, or the target is gone."""


class VersionMalformed(StreamError):
    """A version is there, and its index or headers are not what a publisher writes."""


class DeltaDamaged(StreamError):
    """A tensor's delta cannot be decoded, or does not give the bytes that its checksum says."""


class UnknownEncoding(StreamError):
    """A version says an encoding, compression or checksum that nobody here can read."""


class OutOfOrder(StreamError):
    """A version builds on another one than the version before it."""


class BaseChanged(StreamError):
    """The base checkpoint is gone, or is another one than was recorded."""


class LocalBusy(StreamError):
    """Another pull, or a reader, held the local checkpoint for longer than this one waits."""

    retryable = True


class NotPulled(StreamError):
    """The local checkpoint does not hold the version that is to be committed (yet)."""

    retryable = True


class LocalDamaged(StreamError):
    """The local checkpoint is not what the last pull left."""


class PullPending(StreamError):
    """A pull was cut short after it had begun to write; the next pull finishes it."""

    retryable = True


class DiskFull(StreamError):
    """There is no room for the new version on the local disk."""


class LocalDiskFailed(StreamError):
    """The local disk refused a write for another reason than room."""


class OutsideRoots(StreamError):
    """A directory is not one that a pull may read from or write to."""


_ADVICE = re.compile(r"; (?:publish|pull|wait|write|rename|remove|look|upload) ")


def without_advice(error: Exception) -> str:
    """What ``error`` says was seen, without what it says is to be done: that is for who published
    it, or waits for it, and what was seen is of a copy, which a pull wrote and makes anew."""
    return _ADVICE.split(str(error), maxsplit=1)[0]


@contextmanager
def raised_as(kind: type[StreamError]) -> Iterator[None]:
    """Raise what the body rejects as ``kind``, unless it says more exactly what is wrong."""
    try:
        yield
    except StreamError:
        raise
    except UpdateRejected as error:
        raised = kind(str(error))
        raised.retryable = raised.retryable or error.retryable
        raise raised from error
