"""What a local checkpoint says of itself: ``.weight_sync/state.json``.

A superset of what slime's receiver writes (``version``). Written through a temporary
file and renamed, once everything that it speaks of is durable.

Reserved in a local checkpoint: ``.weight_sync/`` with ``state.json``, ``lock``,
``journal``, ``incoming/``, ``spare/``, ``log.json``, ``log/``, ``files.json``, ``suspect`` and
their ``*.tmp``.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

from hotswap.stream.disk import Disk
from hotswap.stream.errors import OutsideRoots
from hotswap.stream.layout import spelled
from hotswap.stream.seal import is_as_sealed, sealed

__all__ = [
    "FORMAT",
    "Reserved",
    "State",
    "are_plain",
    "digest_of",
    "is_of_another",
    "open_at_once",
    "parsed",
    "read_text",
    "spelled_out",
    "unfinished",
    "write_durably",
]

FORMAT = 1
"""The number of this format; a state with another is not trusted, and the copy reseeded."""

_MAX_BYTES = 100 * 2**20
_FORBIDDEN = frozenset("/\\\0")
_ONLY_OURS = frozenset({"format", "files", "tensors"})


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Which version the files of the directory hold and what they were made from.

    ``base_version`` is the full version that the copy began with (``000000``: the base).
    ``index_digest`` is of the applied version's index and headers, ``base_digest`` of the
    base's. ``files`` are the files that a pull put there, ``tensors`` the xxh3-128 of
    every tensor, ``small`` of every other file.
    """

    version: str
    format: int = 0
    base_version: str = spelled(0)
    base_checkpoint_dir: str | None = None
    base_digest: str | None = None
    checkpoint_source_dir: str | None = None
    index_digest: str | None = None
    files: tuple[str, ...] = ()
    tensors: Mapping[str, str] = {}
    small: Mapping[str, str] = {}

    @property
    def number(self) -> int:
        """The applied version. Raises: ValueError."""
        return int(self.version)


@dataclass(frozen=True, slots=True)
class Reserved:
    """The paths of a local checkpoint that are no part of it."""

    directory: Path

    @property
    def home(self) -> Path:
        """What holds the others."""
        return self.directory / ".weight_sync"

    @property
    def state(self) -> Path:
        """What the directory says of itself."""
        return self.home / "state.json"

    @property
    def lock(self) -> Path:
        """Held exclusively by a pull, shared by who reads the checkpoint."""
        return self.home / "lock"

    @property
    def journal(self) -> Path:
        """There while a version is written: everything that is needed to finish it."""
        return self.home / "journal"

    @property
    def incoming(self) -> Path:
        """Files of a new version before they take their places."""
        return self.home / "incoming"

    @property
    def spare(self) -> Path:
        """Files of the version before, to write the next one into; never read."""
        return self.home / "spare"

    @property
    def log_marker(self) -> Path:
        """Which versions are to be applied on the files, in memory."""
        return self.home / "log.json"

    @property
    def log(self) -> Path:
        """Those versions' blobs."""
        return self.home / "log"

    @property
    def own(self) -> Path:
        """Which files a pull put there, in case the state is lost."""
        return self.home / "files.json"

    @property
    def suspect(self) -> Path:
        """There when a reader has found damage."""
        return self.home / "suspect"

    @property
    def is_pending(self) -> bool:
        """Whether a pull was cut short while it wrote; the next one finishes it."""
        return os.path.lexists(self.journal)

    def check_own(self) -> None:
        """Raises: OutsideRoots when a link would lead what is written or removed elsewhere, or
        there is no place for what a pull keeps."""
        for path in (self.home, self.incoming, self.spare):
            if path.is_symlink():
                raise OutsideRoots(
                    f"{path} is a link, and a pull would write and remove files where it leads; "
                    "remove it, or pull into another directory"
                )
        if self.home.exists() and not self.home.is_dir():
            raise OutsideRoots(
                f"{self.home} is no directory, and a pull keeps its state there; remove it, or "
                "pull into another directory"
            )


def read_text(path: Path) -> bytes | None:
    """A small file's bytes; None when it is not there. Raises: OSError."""
    try:
        with open(path, "rb", opener=open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
                return b""
            return file.read()
    except FileNotFoundError:
        return None


def open_at_once(path: str | os.PathLike[str], flags: int) -> int:
    """An opener: a FIFO in a file's place is opened too, and does not keep a pull waiting."""
    return os.open(path, flags | os.O_NONBLOCK)


def parsed(text: bytes | None) -> State | None:
    """The state that ``text`` spells; None when it is none that this code wrote."""
    try:
        state = msgspec.json.decode(text or b"", type=State)
        sound = state.format == FORMAT and state.number >= 0 and are_plain(state.files)
        sound = sound and is_as_sealed(text or b"")
        return state if sound else None
    except (ValueError, RecursionError):
        return None


def is_of_another(text: bytes) -> bool:
    """Whether another receiver wrote ``text``, which says a version and nothing of its bytes."""
    try:
        said = msgspec.json.decode(text, type=dict[str, object])
    except (ValueError, RecursionError):
        return False
    return "version" in said and _ONLY_OURS.isdisjoint(said)


def are_plain(names: Iterable[str]) -> bool:
    """Whether every name is one of the directory itself: what a pull moves or removes."""
    return all(name not in {"", ".", ".."} and _FORBIDDEN.isdisjoint(name) for name in names)


def spelled_out(state: State) -> bytes:
    """``state`` as it is written."""
    return sealed(json.dumps(msgspec.to_builtins(state), indent=1).encode())


def digest_of(text: bytes | None) -> str | None:
    """What a journal remembers of a state file; None when there was none."""
    return None if text is None else xxhash.xxh3_128_hexdigest(text)


def unfinished(path: Path) -> Path:
    """Where a file is written before it takes its place."""
    return path.with_name(f"{path.name}.tmp")


def write_durably(disk: Disk, path: Path, content: bytes, *, over_directory: bool = False) -> None:
    """Put ``content`` at ``path``, all of it or none; a directory there is an error, or goes.

    Raises: OSError.
    """
    there = unfinished(path)
    fd = disk.open(there, create=True)
    try:
        disk.write(fd, 0, memoryview(content))
        disk.sync(fd)
    finally:
        disk.close(fd)
    if over_directory and path.is_dir() and not path.is_symlink():
        disk.remove(path)
    disk.rename(there, path)
    disk.sync_directory(path.parent)
