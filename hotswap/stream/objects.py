"""Prefixes of an object store as folders: where versions lie that are on no file system.

Rules:

* An object is looked at directly wherever its name is known: a listing may lag.
* A file is what its object was when it was opened; another object under its name is an error.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hotswap.closing import Closing
from hotswap.errors import UpdateRejected
from hotswap.object_url import ObjectUrl
from hotswap.stream.errors import SourceUnusable, VersionMalformed
from hotswap.stream.object_store import ObjectStat, ObjectStore
from hotswap.weights.strict_json import parse_object

__all__ = ["ObjectFile", "ObjectFolder", "Objects"]

_MAX_JSON_BYTES = 100 * 2**20
_FIRST_BYTES = 256 * 2**10  # what is read at once of an object of which the header is wanted
_RANGE_BYTES = 4 * 2**20
_AT_ONCE = 8
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Objects:
    """A place below ``url``; places made of one another share a connection."""

    url: ObjectUrl
    store: ObjectStore = field(compare=False, repr=False)

    @classmethod
    def at(cls, text: str, *, fs: Any = None) -> Objects:
        """What ``text`` leads to; nothing is connected yet. ``fs``: as ``ObjectStore``.

        Raises: SourceUnusable for no plain URL of a store that is known.
        """
        try:
            url = ObjectUrl.parse(text)
        except ValueError as error:
            raise SourceUnusable(str(error)) from error
        return cls(url, ObjectStore(url.scheme, fs=fs))

    def __str__(self) -> str:
        return str(self.url)

    def __truediv__(self, name: str) -> Objects:
        """What is below, under a plain name."""
        return Objects(self.url / name, self.store)

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.name

    @property
    def parent(self) -> Objects:
        """What this one is in."""
        return Objects(self.url.parent, self.store)

    def through(self, stores: dict[str, ObjectStore]) -> Objects:
        """The same place, by the store of its scheme in ``stores``; one's own where there is none,
        which is there from then on."""
        return Objects(self.url, stores.setdefault(self.url.scheme, self.store))

    def check_installed(self) -> None:
        """Nothing is connected. Raises: SourceUnusable when what reads such a URL is missing."""
        self.store.check_installed(self.url)

    def names(self) -> frozenset[str]:
        """Every object below, each as ``directory/name``. Raises: StreamError."""
        return self.store.names(self.url)

    def exists(self) -> bool:
        """Whether this very place is an object. Raises: StreamError."""
        return self.store.stat(self.url) is not None

    def content(self) -> bytes | None:
        """The bytes of a small object; None without one. Raises: StreamError."""
        stat = self.store.stat(self.url)
        if stat is None:
            return None
        try:
            return self.store.read(self.url, [(0, stat.size_bytes)])[0]
        except FileNotFoundError:
            return None


class ObjectFile(Closing):
    """An object, open for reading at any offset from any thread."""

    def __init__(self, place: Objects, stat: ObjectStat) -> None:
        self.name: str = place.name
        self.size_bytes: int = stat.size_bytes
        self.stamp: str = stat.stamp
        self._place = place
        self._stat = stat
        self._lock = threading.Lock()
        self._first: bytes | None = None

    def __repr__(self) -> str:
        return f"<ObjectFile {self._place} {self.size_bytes} bytes>"

    def close(self) -> None:
        """Nothing is held."""

    def fileno(self) -> int:
        """Raises: OSError: an object has no descriptor."""
        raise OSError(f"{self._place} is an object, which has no descriptor")

    def read_at(self, offset: int, *outs: memoryview) -> None:
        """Fill ``outs`` (bytes) one after the other from ``offset`` on, several ranges at a time.

        Raises: OSError when the object ends early or was replaced; StreamError.
        """
        for out in outs:
            self._fill(offset, out)
            offset += len(out)

    def read_bytes(self, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset``. Raises: as ``read_at``."""
        out = bytearray(length)
        self.read_at(offset, memoryview(out))
        return bytes(out)

    def _fill(self, offset: int, out: memoryview) -> None:
        end = offset + len(out)
        if end > self.size_bytes:
            raise OSError(f"{self._place} ends at byte {self.size_bytes}, wanted {end}")
        if end <= _FIRST_BYTES:
            out[:] = self._beginning()[offset:end]
            return
        for ranges in _batches(offset, end):
            for (begin, until), content in zip(ranges, self._read(ranges), strict=True):
                out[begin - offset : until - offset] = content
        self._check_unchanged()

    def _beginning(self) -> bytes:
        with self._lock:
            if self._first is None:
                first = self._read([(0, min(self.size_bytes, _FIRST_BYTES))])[0]
                self._check_unchanged()
                self._first = first
            return self._first

    def _read(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        try:
            got = self._place.store.read(self._place.url, ranges)
        except FileNotFoundError as error:
            raise OSError(f"{self._place} is gone") from error
        except UpdateRejected:
            # A shorter one in its place has no such range, which is the store's to refuse.
            self._check_unchanged()
            raise
        if [len(content) for content in got] != [end - begin for begin, end in ranges]:
            raise OSError(f"{self._place} became shorter while it was read")
        return got

    def _check_unchanged(self) -> None:
        if self._place.store.stat(self._place.url) != self._stat:
            raise OSError(f"{self._place} was replaced while it was read")


class ObjectFolder(Closing):
    """The objects directly below a place."""

    def __init__(self, place: Objects) -> None:
        self.path: Objects = place
        self._seen = dict[str, ObjectStat]()

    def __repr__(self) -> str:
        return f"<ObjectFolder {self.path}>"

    def close(self) -> None:
        """Nothing is held."""

    def names(self) -> frozenset[str]:
        """Every name, its index's also where a listing lacks it yet. Raises: StreamError."""
        listed = frozenset(name for name in self.path.names() if "/" not in name)
        return listed | {_INDEX} if _INDEX not in listed and self.has(_INDEX) else listed

    def has(self, name: str) -> bool:
        """Whether there is an object of that name; ``open_file`` opens this very one.

        One that was there for this folder is not looked for again: who reads it notices when it
        is another by then, or gone. Raises: StreamError.
        """
        if name in self._seen:
            return True
        _check_plain(name)
        stat = self.path.store.stat((self.path / name).url)
        if stat is None:
            return False
        self._seen[name] = stat
        return True

    def open_file(self, name: str) -> ObjectFile:
        """Open the object ``name``. Raises: UpdateRejected."""
        if name not in self._seen and not self.has(name):
            cause = FileNotFoundError(name)
            raise UpdateRejected(f"{name}: is not there in {self.path}") from cause
        return ObjectFile(self.path / name, self._seen[name])

    def read_object(self, name: str) -> dict[str, object]:
        """Parse the JSON object ``name`` (at most 100 MiB). Raises: UpdateRejected."""
        with self.open_file(name) as file:
            if file.size_bytes > _MAX_JSON_BYTES:
                raise UpdateRejected(
                    f"{name}: {file.size_bytes} bytes of JSON, wanted at most {_MAX_JSON_BYTES}"
                )
            try:
                text = file.read_bytes(0, file.size_bytes)
            except OSError as error:
                raise UpdateRejected(
                    f"{name}: cannot be read from {self.path} ({error})"
                ) from error
        return parse_object(text, source=name)


def _check_plain(name: str) -> None:
    try:
        is_plain = "/" not in name and ObjectUrl.parse(f"s3://{name}").path == name
    except ValueError:
        is_plain = False
    if not is_plain:
        raise VersionMalformed(
            f"{name!r:.200} is no plain name of an object, wanted letters, digits and !_.*'()=+, -"
        )


def _batches(begin: int, end: int) -> Iterator[list[tuple[int, int]]]:
    """The ranges from ``begin`` to ``end``, as many of them as are asked for at once."""
    step = _RANGE_BYTES * _AT_ONCE
    for first in range(begin, end, step):
        last = min(first + step, end)
        yield [(at, min(at + _RANGE_BYTES, last)) for at in range(first, last, _RANGE_BYTES)]
