"""The ways in which a pull of version 3 fails, with 1 applied: what is broken, and what is said.

Shared by the tests of every way in: the class of the error, whether a retry may succeed, and
what the message names are the same in all of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hotswap.stream import (
    DeltaDamaged,
    OutOfOrder,
    SourceNotReady,
    SourceUnusable,
    StreamError,
    UnknownEncoding,
    VersionMalformed,
    VersionMissing,
    directory_of,
)
from hotswap.stream.layout import INDEX
from tests.unit.stream.streams import edit_index, made, write_checkpoint

__all__ = ["FAILURES", "Failure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """``status`` and ``code`` are GR's; ``exit_code`` is that of ``hotswap pull``."""

    breaks: Callable[[Path], object]
    kind: type[StreamError]
    status: int
    code: str
    says: str
    retryable: bool = False
    exit_code: int = 1


def _third(source: Path) -> Path:
    return directory_of(source, 3)


def _damaged(source: Path) -> None:
    """A blob in the middle: those at the ends may be of tensors that are read first."""
    path = min(_third(source).glob("*.safetensors"))
    content = bytearray(path.read_bytes())
    content[-40:-8] = bytes(32)
    path.write_bytes(content)


def _short(source: Path) -> None:
    path = min(_third(source).glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-3])


def _pruned(source: Path) -> None:
    _third(source).rename(directory_of(source, 4))
    edit_index(directory_of(source, 4), version="000004")


def _emptied(source: Path) -> None:
    shutil.rmtree(source)
    source.mkdir()


def _a_checkpoint(source: Path) -> None:
    _emptied(source)
    write_checkpoint(source / "made", made(3))
    for path in (source / "made").iterdir():
        path.rename(source / path.name)
    (source / "made").rmdir()


def _a_file(source: Path) -> None:
    shutil.rmtree(source)
    source.write_text("no directory")


def _no_source(breaks: Callable[[Path], object], says: str) -> Failure:
    return Failure(
        breaks=breaks, kind=SourceUnusable, status=400, code="source_unusable", says=says
    )


FAILURES = {
    "a checkpoint": _no_source(_a_checkpoint, "is a checkpoint and has no published version"),
    "a file": _no_source(_a_file, "source is a file, wanted a directory of published versions"),
    "empty": Failure(
        breaks=_emptied,
        kind=SourceNotReady,
        status=409,
        code="source_not_ready",
        says="version 3 is not there (yet)",
        retryable=True,
        exit_code=3,
    ),
    "unpublished": Failure(
        breaks=lambda source: shutil.rmtree(_third(source)),
        kind=SourceNotReady,
        status=409,
        code="source_not_ready",
        says="version 3 is not there (yet)",
        retryable=True,
        exit_code=3,
    ),
    "no index": Failure(
        breaks=lambda source: (_third(source) / INDEX).unlink(),
        kind=SourceNotReady,
        status=409,
        code="source_not_ready",
        says="weight_v000003",
        retryable=True,
        exit_code=3,
    ),
    "short": Failure(
        breaks=_short,
        kind=SourceNotReady,
        status=409,
        code="source_not_ready",
        says="bytes are there, wanted",
        retryable=True,
        exit_code=3,
    ),
    "pruned": Failure(
        breaks=_pruned,
        kind=VersionMissing,
        status=409,
        code="version_missing",
        says="version 3 is gone",
    ),
    "a gap": Failure(
        breaks=lambda source: shutil.rmtree(directory_of(source, 2)),
        kind=VersionMissing,
        status=409,
        code="version_missing",
        says="version 2 is missing on the way to 3",
    ),
    "misnumbered": Failure(
        breaks=lambda source: edit_index(_third(source), version="000004"),
        kind=VersionMalformed,
        status=400,
        code="version_malformed",
        says="says that it is version 4, wanted the 3",
    ),
    "damaged": Failure(
        breaks=_damaged,
        kind=DeltaDamaged,
        status=400,
        code="delta_damaged",
        says="version 3, tensor '",
    ),
    "unknown encoding": Failure(
        breaks=lambda source: edit_index(_third(source), delta_encoding="rot13"),
        kind=UnknownEncoding,
        status=400,
        code="unknown_encoding",
        says="rot13",
    ),
    "unknown checksum": Failure(
        breaks=lambda source: edit_index(_third(source), checksum_format="crc8"),
        kind=UnknownEncoding,
        status=400,
        code="unknown_encoding",
        says="crc8",
    ),
    "out of order": Failure(
        breaks=lambda source: edit_index(_third(source), base_version="000003"),
        kind=OutOfOrder,
        status=400,
        code="out_of_order",
        says="builds on 3",
    ),
}
