"""What numba keeps for later processes is read and written by one process at a time."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotswap import native_cache
from hotswap.native_cache import share_cache


class Cache:
    """What numba has of a function, as far as it matters here."""

    def __init__(self, cache_path: Path) -> None:
        self.cache_path = str(cache_path)
        self.done: list[str] = []

    def load_overload(self, sig: str) -> str:
        self.done.append(f"load {sig}")
        return "loaded"

    def save_overload(self, sig: str, data: object) -> None:
        self.done.append(f"save {sig} {data}")


@pytest.mark.parametrize("step", ["load", "save"])
def test_it_waits_for_another_process(step: str, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "made" / "when asked")
    share_cache(SimpleNamespace(_cache=cache))
    assert cache.load_overload("first") == "loaded"  # nobody has the lock
    fd = os.open(cache.cache_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    call = {
        "load": lambda: cache.load_overload("a"),
        "save": lambda: cache.save_overload("a", 7),
    }[step]
    waiting = threading.Thread(target=call)
    waiting.start()
    waiting.join(0.1)
    assert cache.done == ["load first"]
    os.close(fd)
    waiting.join()
    assert cache.done[1:] == [{"load": "load a", "save": "save a 7"}[step]]


def test_it_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_cache, "_PATIENCE_S", 0.02)
    cache = Cache(tmp_path)
    share_cache(SimpleNamespace(_cache=cache))
    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert cache.load_overload("a") == "loaded"
    os.close(fd)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_child_that_was_forked_meanwhile_does_not_keep_the_lock(tmp_path: Path) -> None:
    children = list[int]()

    class Forking(Cache):
        def load_overload(self, sig: str) -> str:
            child = os.fork()
            if not child:
                signal.pause()
                os._exit(0)
            children.append(child)
            return super().load_overload(sig)

    cache = Forking(tmp_path)
    share_cache(SimpleNamespace(_cache=cache))
    cache.load_overload("a")
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # else it is the child's
    finally:
        os.close(fd)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_without_locks_it_goes_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)  # cannot be imported, as on some systems
    cache = Cache(tmp_path)
    share_cache(SimpleNamespace(_cache=cache))
    assert cache.load_overload("a") == "loaded"


def test_where_nothing_is_kept_nothing_is_waited_for(tmp_path: Path) -> None:
    share_cache(lambda: None)  # as without a compiler
    file = tmp_path / "file"
    file.touch()
    cache = Cache(file / "in a file")  # no directory can be made there
    share_cache(SimpleNamespace(_cache=cache))
    assert cache.load_overload("a") == "loaded"


# An optional extra, which `make setup` installs.
@pytest.mark.skipif(not importlib.util.find_spec("numba"), reason="numba is not installed")
def test_it_is_so_for_what_numba_compiles() -> None:
    from hotswap.native import compiled
    from hotswap.stream.gap_kernels import xor_untold

    ready: Any = compiled(xor_untold)
    cache = ready._cache
    assert {step.__wrapped__.__name__ for step in (cache.load_overload, cache.save_overload)} == {
        "load_overload",
        "save_overload",
    }
