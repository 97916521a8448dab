"""A process that publishes to a store and pulls from it: ``python -m`` STORE FOLDER BASE THREADS.

``STORE`` is where the store is, ``FOLDER`` an empty directory. At first it publishes to the store
and to ``FOLDER/stream``, each time the same: a full version, and a ``gap`` one in which 1 % of the
elements are others. A command is ``{"way": NAME}``, one of ``_Ways``' public methods; the answer
says how long it took.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from hotswap.stream import Publisher, directory_of, pull
from hotswap.stream.objects import Objects
from hotswap.stream.place import Place

__all__ = ["MODULE"]

MODULE = "contrib.bench.store_side"

_RANGE_BYTES, _AT_ONCE = 4 * 2**20, 8
"""As ``hotswap.stream.objects`` reads."""

_SHARE = 0.01
_URL = "s3://bench"


class _Ways:
    def __init__(self, folder: Path, base: Path, threads: int) -> None:
        self._url = Objects.at(_URL)
        self._fs = _bare()
        self._folder = folder
        self._base = base
        self._threads = threads
        self._number = 0
        self._tensors = load_file(base / "model.safetensors")
        after = {name: _stepped(tensor) for name, tensor in self._tensors.items()}
        for place in (self._url / "stream", folder / "stream"):
            with Publisher(place, run="bench", threads=threads) as publisher:
                publisher.publish(self._tensors)
                publisher.publish(after)
        names = sorted(directory_of(self._url / "stream", 1).names())
        self._files = [directory_of(self._url / "stream", 1) / name for name in names]
        self._local = {name: folder / name for name in ("from_store", "from_files")}

    def publish_store(self) -> float:
        """A full version, to the store."""
        place = self._url / self._next()
        try:
            return self._publish(place)
        finally:
            self._drop(place)

    def publish_files(self) -> float:
        """The same, to a directory."""
        directory = self._folder / self._next()
        try:
            return self._publish(directory)
        finally:
            shutil.rmtree(directory)

    def publish_bare(self) -> float:
        """As many bytes in as many objects, by fsspec alone."""
        contents = [(one.name, one.content() or b"") for one in self._files]
        place = self._url / self._next()
        begin = time.perf_counter()
        for name, content in contents:
            self._fs.pipe_file((place / name).url.path, content)
        seconds = time.perf_counter() - begin
        self._drop(place)
        return seconds

    def full_store(self) -> float:
        """A first copy of the full version, from the store."""
        return self._pull("from_store", self._url / "stream", 1)

    def full_files(self) -> float:
        """The same, from a directory."""
        return self._pull("from_files", self._folder / "stream", 1)

    def full_bare(self) -> float:
        """Its bytes, by fsspec alone: the same ranges, as many of them at once."""
        sizes = {one: one.store.stat(one.url) for one in self._files}
        work = [(one.url.path, stat.size_bytes) for one, stat in sizes.items() if stat]

        def read(path: str, begin: int, size: int) -> None:
            at = range(begin, min(begin + _AT_ONCE * _RANGE_BYTES, size), _RANGE_BYTES)
            ends = [min(one + _RANGE_BYTES, size) for one in at]
            self._fs.cat_ranges([path] * len(ends), list(at), ends)

        begin = time.perf_counter()
        with ThreadPoolExecutor(self._threads) as pool:
            tasks = [
                pool.submit(read, path, at, size)
                for path, size in work
                for at in range(0, size, _AT_ONCE * _RANGE_BYTES)
            ]
            for task in tasks:
                task.result()
        return time.perf_counter() - begin

    def delta_store(self) -> float:
        """One version on, from the store; after ``full_store``."""
        return self._pull("from_store", self._url / "stream", 2)

    def delta_files(self) -> float:
        """The same, from a directory; after ``full_files``."""
        return self._pull("from_files", self._folder / "stream", 2)

    def _publish(self, place: Place) -> float:
        with Publisher(place, run="bench", threads=self._threads) as publisher:
            begin = time.perf_counter()
            publisher.publish(self._tensors)
            return time.perf_counter() - begin

    def _pull(self, name: str, source: Place, version: int) -> float:
        local = self._local[name]
        if version == 1:
            shutil.rmtree(local, ignore_errors=True)
        begin = time.perf_counter()
        # As a server does, by a store that is connected already.
        pull(local, source, version, base_dir=self._base, threads=self._threads)
        return time.perf_counter() - begin

    def _drop(self, place: Objects) -> None:
        for name in place.names():
            place.store.delete((place / name).url)

    def _next(self) -> str:
        self._number += 1
        return f"new-{self._number}"


def _stepped(tensor: torch.Tensor) -> torch.Tensor:
    source = torch.Generator().manual_seed(tensor.numel())
    after = tensor.clone()
    after[torch.rand(tensor.shape, generator=source) < _SHARE] *= -1.5
    return after


def _serve(ways: _Ways, configuration: Mapping[str, object]) -> None:
    print(json.dumps(configuration), flush=True)
    for line in sys.stdin:
        seconds = getattr(ways, json.loads(line)["way"])()
        print(json.dumps({"seconds": seconds}), flush=True)


def _bare() -> Any:
    return import_module("s3fs").S3FileSystem(
        skip_instance_cache=True,
        use_listings_cache=False,
        config_kwargs={"max_pool_connections": 4 * _AT_ONCE},
    )


if __name__ == "__main__":
    _, endpoint, folder, base, threads = sys.argv
    os.environ |= {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    told = {"threads": int(threads), "ranges_at_once": _AT_ONCE, "range_bytes": _RANGE_BYTES}
    _serve(_Ways(Path(folder), Path(base), int(threads)), told)
