"""An object store, through fsspec: whole objects and ranges of them, and nothing remembered.

Rules:

* No listing and no size is kept from one look to the next.
* A request that may succeed later is sent again after a pause, until its tries or the store's
  budget are used up: every success pays a tenth of another try into it, so that a store that
  is down is given up soon and one that stumbles is not.
* A write is of a whole object. There is no rename.
* Credentials that are refused are read once more from where they came from: others may lie there
  by now.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from hotswap.object_url import ObjectUrl
from hotswap.stream.object_errors import (
    explained,
    is_missing_bucket,
    is_passing,
    is_refused,
    is_taken,
    no_bucket,
)

__all__ = ["ObjectStat", "ObjectStore"]

_T = TypeVar("_T")

_TRIES = {"gs": 1}
_USUAL_TRIES = 5
"""gcsfs has six of its own, and cannot be told to have fewer."""

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_BUDGET = 10.0
_REFUND = 0.1
_CONNECT_S, _READ_S = 10, 60
_CONNECTIONS = 32
_READS_AT_ONCE = 4
"""Of several ranges each: what they ask for is in memory together."""

_SLOWEST_BYTES_S = 2**20
"""A request that is slower than that for longer than ``_READ_S`` is given up."""

_MODULES = {"s3": ("s3fs",), "gs": ("gcsfs",)}
"""What fsspec needs for a scheme besides itself."""

_TAGS = ("ETag", "etag", "generation", "VersionId", "md5Hash", "LastModified", "mtime", "created")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStat:
    """How long an object is, and a ``stamp`` that another one under its name does not have."""

    size_bytes: int
    stamp: str


class ObjectStore:
    """The store of one scheme; connected when it is first used. Any thread."""

    def __init__(
        self, scheme: str, *, fs: Any = None, pause: Callable[[float], None] = time.sleep
    ) -> None:
        """``fs``: an fsspec file system to use instead of the scheme's own."""
        self._scheme = scheme
        self._tries = _TRIES.get(scheme, _USUAL_TRIES)
        self._made = fs
        self._is_given = fs is not None
        self._pause = pause
        self._lock = threading.Lock()
        self._reads = threading.BoundedSemaphore(_READS_AT_ONCE)
        self._budget = _BUDGET

    def __repr__(self) -> str:
        return f"<ObjectStore {self._scheme}:// {self._budget:.1f} tries left>"

    def check_installed(self, url: ObjectUrl) -> None:
        """Import nothing, and connect to nothing. Raises: SourceUnusable without the extra."""
        modules = () if self._is_given else ("fsspec", *_MODULES.get(self._scheme, ()))
        for module in modules:
            if find_spec(module) is None:
                raise explained(url, "reading it", ImportError(f"there is no module {module}"))

    def stat(self, url: ObjectUrl) -> ObjectStat | None:
        """None when there is no object. Raises: StreamError."""

        def look() -> Mapping[str, Any]:
            fs = self._fs(url)
            fs.invalidate_cache()
            found: Mapping[str, Any] = fs.info(url.path, **self._within(0))
            return found

        try:
            found = self._tried(url, "looking at it", look)
        except FileNotFoundError:
            return None
        if found.get("type") != "file":
            return None
        stamp = " ".join(f"{tag}={found[tag]}" for tag in _TAGS if found.get(tag) is not None)
        return ObjectStat(size_bytes=int(found["size"]), stamp=stamp)

    def names(self, url: ObjectUrl) -> frozenset[str]:
        """Every object below ``url``, each as ``directory/name``. Raises: StreamError."""

        def look() -> Sequence[str]:
            fs = self._fs(url)
            fs.invalidate_cache()
            found: Sequence[str] = fs.find(url.path, **self._within(0))
            return found

        try:
            found = self._tried(url, "listing it", look)
        except FileNotFoundError as error:
            if url.scheme == "gs":
                # Its prefixes are listed when they are empty; it is the bucket that is not there.
                raise no_bucket(url) from error
            return frozenset()
        paths = (path.lstrip("/") for path in found)
        below = f"{url.path}/"
        return frozenset(path.removeprefix(below) for path in paths if path.startswith(below))

    def read(self, url: ObjectUrl, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each (begin, end), asked for together.

        Raises: FileNotFoundError, StreamError.
        """
        got = dict[int, bytes]()

        def ask() -> None:
            left = [number for number in range(len(ranges)) if number not in got]
            with self._reads:
                answers = self._fs(url).cat_ranges(
                    [url.path] * len(left),
                    [ranges[number][0] for number in left],
                    [ranges[number][1] for number in left],
                    on_error="return",
                    **self._within(sum(ranges[number][1] - ranges[number][0] for number in left)),
                )
            failed = [answer for answer in answers if isinstance(answer, BaseException)]
            for number, answer in zip(left, answers, strict=True):
                if not isinstance(answer, BaseException):
                    got[number] = answer
            if failed:
                raise failed[0]

        self._tried(url, "reading it", ask)
        return [got[number] for number in range(len(ranges))]

    def put(self, url: ObjectUrl, content: bytes, *, new: bool = False) -> None:
        """Write the object, all of it or none; ``new``: only where there is none.

        Raises: FileExistsError, also when an earlier try of this very call had succeeded without
        an answer; StreamError.
        """
        mode = "create" if new else "overwrite"

        def write() -> None:
            fs = self._fs(url)
            try:
                fs.pipe_file(url.path, content, mode=mode, **self._within(len(content)))
            except OSError as error:
                if new and is_taken(error):
                    raise FileExistsError(str(url)) from error
                raise

        self._tried(url, "writing it", write)

    def delete(self, url: ObjectUrl) -> None:
        """Remove the object; also when it is gone. Raises: StreamError."""
        try:
            self._tried(url, "removing it", lambda: self._fs(url).rm_file(url.path))
        except FileNotFoundError:
            return

    def _tried(self, url: ObjectUrl, doing: str, work: Callable[[], _T]) -> _T:
        pause_s, tries, can_reconnect = _FIRST_PAUSE_S, 0, not self._is_given
        while True:
            tries += 1
            try:
                answer = work()
            except Exception as error:
                is_an_answer = isinstance(error, (FileNotFoundError, FileExistsError))
                if is_an_answer and not is_missing_bucket(error):
                    raise
                if can_reconnect and is_refused(error):
                    can_reconnect = False
                    self._disconnect()
                    continue
                if not is_passing(error) or tries == self._tries or not self._spend():
                    raise explained(url, doing, error, tries=tries) from error
            else:
                with self._lock:
                    self._budget = min(_BUDGET, self._budget + _REFUND)
                return answer
            self._pause(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    def _spend(self) -> bool:
        with self._lock:
            if self._budget < 1:
                return False
            self._budget -= 1
            return True

    def _within(self, size_bytes: int) -> dict[str, float]:
        """How long a request may take, for file systems that can be told."""
        if not getattr(self._made, "async_impl", False):
            return {}
        return {"timeout": _CONNECT_S + _READ_S + size_bytes / _SLOWEST_BYTES_S}

    def _disconnect(self) -> None:
        with self._lock:
            self._made = None

    def _fs(self, url: ObjectUrl) -> Any:
        with self._lock:
            if self._made is None:
                try:
                    self._made = _connected(url.scheme)
                except ImportError as error:
                    raise explained(url, "reading it", error) from error
            return self._made


def _connected(scheme: str) -> Any:
    """Raises: ImportError for a scheme whose extra is not installed."""
    fsspec = import_module("fsspec")
    # Of its own: one that is shared keeps the credentials that it was made with.
    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    if scheme == "s3":
        configured = import_module("fsspec.config").conf.get("s3", {}).get("config_kwargs", {})
        ours = {
            "connect_timeout": _CONNECT_S,
            "read_timeout": _READ_S,
            "max_pool_connections": _CONNECTIONS,
            "retries": {"total_max_attempts": 1},
        }
        options["config_kwargs"] = {**ours, **configured}
    fs = fsspec.filesystem(scheme, **options)
    if hasattr(fs, "retries"):
        fs.retries = 1  # else each of our tries would be five of its own
    return fs
