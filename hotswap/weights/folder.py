"""Opening files of a directory that may be hostile, replaced or half-written.

Rules:

* A file is pinned first (``O_PATH``: nothing is read, a FIFO or a device is not
  even opened), judged by what is pinned, and only then opened through the pin.
  No name is looked up twice, so nothing can change in between.
* The directory itself is pinned: one renamed over it meanwhile is not seen.
* Files are read with ``preadv``, never mapped: a trainer may delete or rewrite
  them the moment the call returns, and a short file is an error, not a SIGBUS.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from hotswap.closing import Closing
from hotswap.errors import UpdateRejected
from hotswap.weights.roots import Allowed, Roots
from hotswap.weights.strict_json import parse_object

__all__ = ["Folder", "OpenFile"]

_PIECE_BYTES = 16 * 2**20
_MAX_BUFFERS = 1024  # IOV_MAX: what one system call takes
_MAX_JSON_BYTES = 100 * 2**20
_FORBIDDEN = frozenset("/\\\0")


class OpenFile(Closing):
    """A regular file, open for reading at any offset from any thread.

    ``size_bytes`` is its size when it was opened; a later change is an error.
    """

    def __init__(self, fd: int, *, name: str) -> None:
        self.name = name
        self._raw = os.fdopen(fd, "rb", buffering=0)
        status = os.fstat(fd)
        self.size_bytes: int = status.st_size
        self._mtime_ns = status.st_mtime_ns

    def __repr__(self) -> str:
        return f"<OpenFile {self.name} {self.size_bytes} bytes>"

    @property
    def stamp(self) -> str:
        """When it was last written to, in nanoseconds."""
        return str(self._mtime_ns)

    def close(self) -> None:
        """Give the descriptor back. Idempotent; no read may be running."""
        self._raw.close()

    def fileno(self) -> int:
        """The descriptor. Raises: OSError once closed (the number may be another's by then)."""
        if self._raw.closed:
            raise OSError(f"{self.name} was closed already: its checkpoint is no longer open")
        return self._raw.fileno()

    def read_at(self, offset: int, *outs: memoryview) -> None:
        """Fill ``outs`` (bytes) one after the other from ``offset`` on, at most 16 MiB a system
        call, without the GIL.

        Raises: OSError when the file ends early or was changed since it was opened.
        """
        fd, end = self.fileno(), offset + sum(map(len, outs))
        left = [out for out in outs if len(out)]
        while left:
            got = os.preadv(fd, _at_once(left), offset)
            if got == 0:
                raise OSError(
                    f"{self.name} ends at byte {offset}, wanted {end}: "
                    "it became shorter while it was read; publish by rename and send it again"
                )
            offset += got
            left = _without(left, got)
        self._check_unchanged()

    def read_bytes(self, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset``. Raises: as ``read_at``."""
        out = bytearray(length)
        self.read_at(offset, memoryview(out))
        return bytes(out)

    def _check_unchanged(self) -> None:
        status = os.fstat(self.fileno())
        if (status.st_size, status.st_mtime_ns) != (self.size_bytes, self._mtime_ns):
            raise OSError(
                f"{self.name} was written to while it was read; publish by rename and send it again"
            )


class Folder(Closing):
    """A pinned directory, and the only way in which a checkpoint opens its files."""

    def __init__(
        self, fd: int, *, path: Path, allowed: Allowed | None, follows_links: bool = True
    ) -> None:
        self._fd = fd
        self._allowed = allowed
        self._follows_links = follows_links
        self.path = path

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        allowed: Allowed | None = None,
        follows_links: bool = True,
    ) -> Self:
        """Pin ``directory``. ``allowed`` then judges it and every file opened through it.

        Without ``follows_links`` a file that is a symbolic link is refused, wherever it leads.

        Raises: UpdateRejected when it is no directory or not allowed.
        """
        if not os.fspath(directory):
            raise UpdateRejected("the checkpoint path is empty, wanted a directory")
        try:
            # The first look follows links but reads nothing, and a path outside the
            # roots gets the same answer whether or not something is there.
            real = Path(os.path.realpath(directory))
            _check_allowed(real, str(directory), allowed)
            fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        except (OSError, ValueError) as error:
            raise UpdateRejected(
                f"{os.fspath(directory)!r} is not a checkpoint directory that can be opened here "
                f"({_reason(error)}); look at the path"
            ) from error
        folder = cls(fd, path=Path(directory), allowed=allowed, follows_links=follows_links)
        try:
            _check_allowed(_pinned_path(fd), str(directory), allowed)
        except BaseException:
            folder.close()
            raise
        return folder

    def __repr__(self) -> str:
        return f"<Folder {self.path}>"

    def close(self) -> None:
        """Unpin the directory; files opened through it stay open. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def names(self) -> frozenset[str]:
        """Every name in the directory, of whatever kind. Raises: UpdateRejected."""
        try:
            return frozenset(os.listdir(f"/proc/self/fd/{self._fd}"))
        except OSError as error:
            raise UpdateRejected(f"{self.path}: cannot be listed ({_reason(error)})") from error

    def has(self, name: str) -> bool:
        """Whether a listing of now has ``name``. Raises: UpdateRejected."""
        return name in self.names()

    def open_file(self, name: str) -> OpenFile:
        """Open the regular file ``name``.

        Raises: UpdateRejected for a name that is no plain file name, that does not
        exist, that is a directory, FIFO, socket or device, or that is not allowed.
        """
        _check_plain(name)
        with self._explained(name):
            return self._open_pinned(name)

    def read_object(self, name: str) -> dict[str, object]:
        """Parse the JSON file ``name`` (at most 100 MiB). Raises: UpdateRejected."""
        with self.open_file(name) as file:
            if file.size_bytes > _MAX_JSON_BYTES:
                raise UpdateRejected(
                    f"{name}: {file.size_bytes} bytes of JSON, wanted at most {_MAX_JSON_BYTES}"
                )
            with self._explained(name):
                text = file.read_bytes(0, file.size_bytes)
        return parse_object(text, source=name)

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            raise UpdateRejected(
                f"{name}: cannot be read from {self.path} ({_reason(error)})"
            ) from error

    def _open_pinned(self, name: str) -> OpenFile:
        # Pinned without following, a link is a link, which is no regular file.
        links = 0 if self._follows_links else os.O_NOFOLLOW
        pin = os.open(name, os.O_PATH | links, dir_fd=self._fd)
        try:
            _check_allowed(_pinned_path(pin), name, self._allowed)
            if not stat.S_ISREG(os.fstat(pin).st_mode):
                raise UpdateRejected(f"{name}: not a regular file in {self.path}; wanted one")
            return OpenFile(os.open(f"/proc/self/fd/{pin}", os.O_RDONLY), name=name)
        finally:
            os.close(pin)


def _at_once(outs: Sequence[memoryview]) -> list[memoryview]:
    """As much of the beginning of ``outs`` as one system call reads."""
    taken, room = list[memoryview](), _PIECE_BYTES
    for out in outs[:_MAX_BUFFERS]:
        taken.append(out[:room])
        room -= len(taken[-1])
        if not room:
            break
    return taken


def _without(outs: Sequence[memoryview], count: int) -> list[memoryview]:
    """What is left of ``outs`` after their first ``count`` bytes."""
    for at, out in enumerate(outs):
        if count < len(out):
            return [out[count:], *outs[at + 1 :]]
        count -= len(out)
    return []


def _pinned_path(fd: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{fd}"))


def _check_plain(name: str) -> None:
    if not name or name in {".", ".."} or not _FORBIDDEN.isdisjoint(name):
        raise UpdateRejected(
            f"{name!r} is not a plain file name; a checkpoint names files of its own directory only"
        )


def _check_allowed(real: Path, asked: str, allowed: Allowed | None) -> None:
    if allowed is not None and not allowed(real):
        roots = str(allowed) if isinstance(allowed, Roots) else "allowed to this server"
        raise UpdateRejected(
            f"{asked}: resolves to {real}, outside the weights roots ({roots}); "
            "move it inside, or start the server with another --weights-root"
        )


def _reason(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
