"""Object stores in memory that fail, lag or lose an answer at any one request."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from hotswap.object_url import ObjectUrl
from hotswap.stream.object_store import ObjectStore
from hotswap.stream.objects import Objects

URL = "memory://bucket/run"

Fault = Callable[[str, str], None]


class FaultyStore:
    """Calls ``before`` and ``after`` with each request and the path that it is about."""

    def __init__(self) -> None:
        memory = import_module("fsspec.implementations.memory").MemoryFileSystem
        self._memory: Any = memory(global_store=False, skip_instance_cache=True)
        self.before: Fault = lambda request, path: None
        self.after: Fault = lambda request, path: None
        self.requests = list[tuple[str, str]]()
        self.hidden = set[str]()

    def invalidate_cache(self) -> None:
        self._memory.invalidate_cache()

    def info(self, path: str) -> Any:
        return self._asked("info", path, lambda: self._memory.info(path))

    def find(self, path: str) -> list[str]:
        found = self._asked("find", path, lambda: self._memory.find(path))
        return [name for name in found if not any(part in name for part in self.hidden)]

    def cat_ranges(
        self, paths: list[str], starts: list[int], ends: list[int], *, on_error: str
    ) -> list[object]:
        assert on_error == "return"
        answers = list[object]()
        for path, start, end in zip(paths, starts, ends, strict=True):
            try:
                answers.append(self._read(path, start, end))
            except Exception as error:
                answers.append(error)
        return answers

    def pipe_file(self, path: str, value: bytes, *, mode: str) -> None:
        self._asked("write", path, lambda: self._memory.pipe_file(path, value, mode=mode))

    def rm_file(self, path: str) -> None:
        self._asked("remove", path, lambda: self._memory.rm_file(path))

    def _read(self, path: str, start: int, end: int) -> Any:
        return self._asked("read", path, lambda: self._memory.cat_file(path, start, end))

    def _asked(self, request: str, path: str, work: Callable[[], Any]) -> Any:
        short = path.removeprefix("bucket/run").removeprefix("/")
        self.requests.append((request, short))
        self.before(request, short)
        answer = work()
        self.after(request, short)
        return answer


def objects(fs: FaultyStore, pauses: list[float] | None = None, *, url: str = URL) -> Objects:
    """A place in ``fs``; its pauses are noted and not taken."""
    noted = list[float]() if pauses is None else pauses
    return Objects(ObjectUrl.parse(url), ObjectStore("memory", fs=fs, pause=noted.append))


def uploaded(directory: Path, place: Objects) -> None:
    """Copy everything below ``directory`` to ``place``, as who mirrors a stream does."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            target = place
            for part in path.relative_to(directory).parts:
                target = target / part
            target.store.put(target.url, path.read_bytes())
