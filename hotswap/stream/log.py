"""The log of a local checkpoint: versions that lie beside its files and are not in them.

``.weight_sync/log.json`` names them in order, and says on which state of the files they are
to be applied; ``.weight_sync/log/`` has their blobs.

Rules:

* ``state.json`` is about the files alone. Who does not know of logs finds in it what it finds
  in the files, whole.
* A log ends in the step that writes the files: while no journal is there, it is on the state
  that is there. One that is not, or that nothing names, is damage, and nobody can say then what
  the directory holds.
* ``log.json`` is there before the first blob is, with no version at first.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

from hotswap.stream.checksums import CHECKSUMS
from hotswap.stream.encodings import Encoding
from hotswap.stream.errors import LocalDamaged, StreamError
from hotswap.stream.layout import is_number, spelled
from hotswap.stream.seal import is_as_sealed, sealed
from hotswap.stream.state import (
    Reserved,
    State,
    digest_of,
    is_of_another,
    parsed,
    read_text,
)

__all__ = [
    "LOG_FORMAT",
    "Holding",
    "Log",
    "LoggedVersion",
    "check_plain",
    "check_trusted",
    "file_of",
    "has_log",
    "holding_of",
    "holding_in",
    "spelled_log",
]

LOG_FORMAT = 1
"""The number of this format; one with another is damage to who reads it."""


class LoggedVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a log. ``size_bytes`` is how long its file is.

    ``index_digest``: as in a state; None for a version that was only passed through.
    """

    version: str
    base_version: str
    encoding: Encoding
    checksum_format: str
    size_bytes: int
    index_digest: str | None = None

    @property
    def file(self) -> str:
        """Its name in ``.weight_sync/log``."""
        return file_of(int(self.version))


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """What is applied, in memory, on files whose state has the digest ``on``.

    ``tensors`` has the xxh3-128 of every tensor that the versions change, after the last.
    """

    format: int
    on: str
    checkpoint_source_dir: str
    versions: tuple[LoggedVersion, ...]
    tensors: Mapping[str, str]

    @property
    def size_bytes(self) -> int:
        """Of the files of its versions."""
        return sum(version.size_bytes for version in self.versions)

    def digests(self) -> Iterator[str]:
        """What tells the files alone, then the files with each version more, from all others."""
        digest = xxhash.xxh3_128()
        yield self.on
        digest.update(self.on.encode())
        for version in self.versions:
            digest.update(msgspec.json.encode(version))
            yield digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a local checkpoint holds: files in the state ``plain``, and ``log`` on them.

    ``digest`` tells it from everything else that it may hold.
    """

    plain: State
    log: Log | None
    digest: str

    @property
    def state(self) -> State:
        """The state of who reads the files and the log."""
        if self.log is None:
            return self.plain
        last = self.log.versions[-1]
        return msgspec.structs.replace(
            self.plain,
            version=last.version,
            checkpoint_source_dir=self.log.checkpoint_source_dir,
            index_digest=last.index_digest,
            tensors={**self.plain.tensors, **self.log.tensors},
        )

    @property
    def versions(self) -> Sequence[LoggedVersion]:
        """Those of the log, oldest first."""
        return () if self.log is None else self.log.versions


def file_of(version: int) -> str:
    """What the file of ``version`` is called."""
    return f"{spelled(version)}.safetensors"


def holding_in(directory: Path) -> Holding | None:
    """What ``directory`` holds; None where nothing trustworthy says so. Raises: OSError."""
    paths = Reserved(directory)
    return holding_of(paths, read_text(paths.state))


def holding_of(paths: Reserved, text: bytes | None) -> Holding | None:
    """As ``holding_in``, where the state of the files is ``text``."""
    plain, on = parsed(text), digest_of(text)
    if plain is None or on is None:
        return None
    log = _parsed_log(_marker_text(paths), plain, on)
    if log is None:
        return None if _has_lost_log(paths) else Holding(plain=plain, log=None, digest=on)
    if not log.versions:  # begun, and no version is durable yet
        return Holding(plain=plain, log=None, digest=on)
    return Holding(plain=plain, log=log, digest=list(log.digests())[-1])


def check_trusted(directory: Path) -> None:
    """Raises: LocalDamaged for a directory that pulls keep and that does not say what it holds.

    A pull that failed has condemned it, or its state or log was lost: whoever read its files
    might get those of two versions. What no pull keeps is nobody's to refuse here.
    """
    paths = Reserved(directory)
    if not paths.home.is_dir():
        return
    try:
        text = read_text(paths.state)
        trusted = holding_of(paths, text) is not None or not _is_kept(paths, text)
    except OSError:
        trusted = False
    if trusted:
        return
    what = "has no state any more"
    if os.path.lexists(paths.state):
        what = "was found damaged, or its state or log is"
    raise LocalDamaged(
        f"{directory}: {what}, and nothing says which bytes its files should be; pull it again, "
        "which makes the copy anew"
    )


def _is_kept(paths: Reserved, text: bytes | None) -> bool:
    if text is not None:
        return not is_of_another(text)
    if os.path.lexists(paths.state):
        return True
    traces = (paths.lock, paths.own, paths.log_marker, paths.log)
    files = any(name != paths.home.name for name in os.listdir(paths.directory))
    return files and any(map(os.path.lexists, traces))


def _has_lost_log(paths: Reserved) -> bool:
    """Whether there is a log of which nothing that counts says what is in it."""
    if os.path.lexists(paths.log_marker):
        return True
    try:
        is_directory = stat.S_ISDIR(os.lstat(paths.log).st_mode)
    except FileNotFoundError:
        return False
    return is_directory and bool(os.listdir(paths.log))


def has_log(directory: Path) -> bool:
    """Whether what ``directory`` holds is more than what its files are. Raises: OSError."""
    if not os.path.lexists(Reserved(directory).log_marker):
        return False
    held = holding_in(directory)
    return held is not None and held.log is not None


def check_plain(directory: Path) -> None:
    """Raises: StreamError for a directory whose files are behind what it holds, LocalDamaged as
    ``check_trusted``; OSError."""
    check_trusted(directory)
    if has_log(directory):
        raise StreamError(
            f"{directory}: is a local checkpoint with versions beside its files, wanted plain "
            f"files: hotswap materialize {directory}"
        )


def spelled_log(log: Log) -> bytes:
    """``log`` as it is written."""
    return sealed(json.dumps(msgspec.to_builtins(log)).encode())


def _marker_text(paths: Reserved) -> bytes | None:
    """None for what is no file: a link may lead to another log, a directory to none."""
    try:
        regular = stat.S_ISREG(os.lstat(paths.log_marker).st_mode)
    except FileNotFoundError:
        return None
    return read_text(paths.log_marker) if regular else None


def _parsed_log(text: bytes | None, plain: State, on: str) -> Log | None:
    """None for a log of other files, and for one that this code did not write."""
    try:
        log = msgspec.json.decode(text or b"", type=Log)
    except (ValueError, RecursionError):
        return None
    sound = log.format == LOG_FORMAT and log.on == on and is_as_sealed(text or b"")
    return log if sound and _is_chain(log.versions, plain.number) else None


def _is_chain(versions: Sequence[LoggedVersion], begin: int) -> bool:
    for version in versions:
        if not (is_number(version.version) and is_number(version.base_version)):
            return False
        if int(version.base_version) != begin or int(version.version) <= begin:
            return False
        if version.checksum_format not in CHECKSUMS or version.size_bytes < 0:
            return False
        begin = int(version.version)
    return True
