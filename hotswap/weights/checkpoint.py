"""A Hugging Face checkpoint directory as a stage: open, checked, not yet read.

Rules:

* Every header of every file is checked before any byte of any tensor is read.
* Descriptors are opened once, by ``Checkpoint.open``; no mapping is ever made, and
  ``close`` leaves nothing behind, so that a trainer may delete the directory next.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import torch

from hotswap.closing import Closing
from hotswap.errors import UpdateRejected
from hotswap.types import Bucket, Manifest, Payload, Readable, TensorSpec
from hotswap.weights.file_tensor import FileTensor
from hotswap.weights.folder import Folder, OpenFile
from hotswap.weights.layout import Layout, find_layout
from hotswap.weights.roots import Allowed
from hotswap.weights.safetensors_header import read_header
from hotswap.weights.torch_file import names_in_torch_file, read_torch_file

__all__ = ["Checkpoint"]

_BUCKET_BYTES = 256 * 2**20


class Checkpoint(Closing):
    """Weights and configurations of one directory; satisfies ``Stage``.

    ``config.json`` has to be there, ``generation_config.json`` may be.

    From safetensors its payloads are ``FileTensor``; from torch files they are
    tensors in host memory that the checkpoint owns until it is closed.
    """

    def __init__(
        self,
        path: Path,
        *,
        payloads: Mapping[str, Payload],
        manifest: Manifest,
        resources: ExitStack,
        files: Sequence[OpenFile] = (),
    ) -> None:
        """Use ``Checkpoint.open``. ``resources`` are closed with the checkpoint.

        ``origin`` is which bytes these are (a ``hotswap.sparse.Origin``), and ``changes`` how
        they came about (a ``hotswap.sparse.staging.Changes``), for who opens one to say that
        knows; None at first. So is ``before_bucket``, which looks at each bucket before it is
        delivered, and raises for one that is not to be, and ``before_writing``, which does so for
        ``check_before_writing``, of everything that could be met when it is too late.
        """
        self.path = path
        self.files: tuple[OpenFile, ...] = tuple(files)
        self.origin: object | None = None
        self.changes: object | None = None
        self.before_bucket: Callable[[Bucket], None] | None = None
        self.before_writing: Callable[[Bucket], None] | None = None
        self._payloads = dict(payloads)
        self._resources = resources
        self._manifest = manifest

    @classmethod
    def open(cls, directory: str | os.PathLike[str], *, allowed: Allowed | None = None) -> Self:
        """Open every file that holds weights, and check all headers. Blocks; any thread.

        ``allowed`` judges the real path of the directory and of each file (``Roots``
        is one such judge); None allows symbolic links to anywhere, as Hugging Face
        caches use them. Which files count: see ``layout``. Raises: UpdateRejected.
        """
        with ExitStack() as undo:
            with Folder.open(directory, allowed=allowed) as folder:
                if "config.json" not in folder.names():
                    raise UpdateRejected(_without_config(folder))
                config = folder.read_object("config.json")
                generation = _read_if_there(folder, "generation_config.json")
                layout = find_layout(folder)
                # All headers first: a fault in the last file must not cost a read of the first.
                files = [undo.enter_context(folder.open_file(name)) for name in layout.files]
                payloads = _payloads(files, layout)
                _check_rivals(folder, layout, payloads)
            specs = itertools.starmap(_spec, payloads.items())
            manifest = Manifest.of(specs, config=config, generation_config=generation)
            return cls(
                folder.path,
                payloads=payloads,
                manifest=manifest,
                resources=undo.pop_all(),
                files=files,
            )

    def __repr__(self) -> str:
        return f"<Checkpoint {self.path} {len(self._manifest)} tensors>"

    def lay_over(self, payloads: Mapping[str, Readable], *, owner: Closing) -> None:
        """Deliver ``payloads`` in the place of those of the same names and specs.

        ``owner`` is closed with the checkpoint.
        """
        self._resources.enter_context(owner)
        self._payloads.update(payloads)

    def close(self) -> None:
        """Close every file and let go of every tensor. Idempotent; no read may be running."""
        self._payloads.clear()
        self._resources.close()

    @property
    def manifest(self) -> Manifest:
        """Everything that ``buckets`` delivers, with both configurations."""
        return self._manifest

    def check_before_writing(self) -> Iterator[None]:
        """Look at every bucket now, a step each, with ``before_writing``; and at none when it is
        delivered, once this has been gone through. Raises: what ``before_writing`` does.
        """
        if self.before_writing is None:
            return
        for bucket in self._in_order():
            self.before_writing(bucket)
            yield
        self.before_bucket = None

    def buckets(self) -> Iterator[Bucket]:
        """Every tensor once, in file order, about 256 MiB a bucket. Opens nothing.

        Raises: what ``before_bucket`` does.
        """
        for bucket in self._in_order():
            if self.before_bucket is not None:
                self.before_bucket(bucket)
            yield bucket

    def _in_order(self) -> Iterator[Bucket]:
        bucket: list[tuple[str, Payload]] = []
        held_bytes = 0
        for name, payload in self._payloads.items():
            bucket.append((name, payload))
            held_bytes += self._manifest[name].size_bytes
            if held_bytes >= _BUCKET_BYTES:
                yield bucket
                bucket, held_bytes = [], 0
        if bucket:
            yield bucket


def _without_config(folder: Folder) -> str:
    """What is wrong with a directory that has no config.json."""
    from hotswap.stream.layout import version_named

    versions = [n for n in map(version_named, folder.names()) if n is not None]
    if versions:
        return (
            f"{folder.path}: is no checkpoint but a source of published versions, up to "
            f"{max(versions)}; hotswap pull makes a checkpoint of one, and POST /pull_weights, and "
            "delta-pull as load strategy"
        )
    if version_named(Path(folder.path).name) is not None:
        return (
            f"{folder.path}: is one version of a stream, and has no config.json; hotswap pull "
            "makes a checkpoint of it and what it builds on"
        )
    return (
        f"config.json: cannot be read from {folder.path}, which has none; put the model's beside "
        "the weights (a server that embeds hotswap around a module of its own takes one with {} "
        "in it)"
    )


def _read_if_there(folder: Folder, name: str) -> dict[str, object] | None:
    return folder.read_object(name) if name in folder.names() else None


def _payloads(files: Iterable[OpenFile], layout: Layout) -> dict[str, Payload]:
    payloads: dict[str, Payload] = {}
    holder: dict[str, str] = {}
    for file in files:
        for name, payload in _contents(file, layout).items():
            if layout.file_of is not None and layout.file_of.get(name) != file.name:
                continue
            if name in holder:
                raise _in_two(name, holder[name], file.name)
            holder[name] = file.name
            payloads[name] = payload
    _check_index_kept(layout, holder)
    return payloads


def _check_rivals(folder: Folder, layout: Layout, payloads: Mapping[str, Payload]) -> None:
    for rival in layout.rivals:
        twice = payloads.keys() & _names_in(folder, rival)
        if twice:
            raise _in_two(min(twice), layout.files[0], rival)


def _names_in(folder: Folder, name: str) -> frozenset[str]:
    """Of the tensors in a file that may be anything: none when it is no file of weights."""
    try:
        with folder.open_file(name) as file:
            if not name.endswith(".safetensors"):
                return names_in_torch_file(file)
            return frozenset(extent.spec.name for extent in read_header(file))
    except UpdateRejected:
        return frozenset()


def _in_two(tensor: str, one: str, other: str) -> UpdateRejected:
    return UpdateRejected(
        f"tensor {tensor!r} is in {one} and in {other}, and no index says which one counts; "
        "remove one, or add the index"
    )


def _contents(file: OpenFile, layout: Layout) -> Mapping[str, Payload]:
    if not layout.is_safetensors:
        return read_torch_file(file)
    return {
        extent.spec.name: FileTensor(extent.spec, file=file, offset=extent.offset)
        for extent in read_header(file)
    }


def _check_index_kept(layout: Layout, holder: Mapping[str, str]) -> None:
    lacking = [(name, file) for name, file in (layout.file_of or {}).items() if name not in holder]
    if lacking:
        name, file = lacking[0]
        raise UpdateRejected(
            f"{file} lacks tensor {name!r}, which the index maps to it (as it does {len(lacking)} "
            "in all); index and shards do not belong together"
        )


def _spec(name: str, payload: Payload) -> TensorSpec:
    if isinstance(payload, torch.Tensor):
        return TensorSpec(name=name, dtype=payload.dtype, shape=tuple(payload.shape))
    return payload.spec
