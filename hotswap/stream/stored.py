"""A checkpoint directory as bytes: which tensor lies where in which file.

It is a seed (the base, a full version) or the local copy. Every header is parsed and
checked against its file before a tensor is read; files stay open until ``close``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import xxhash

from hotswap.closing import Closing
from hotswap.errors import UpdateRejected
from hotswap.stream.errors import SourceNotReady, StreamError, VersionMalformed, raised_as
from hotswap.stream.header import Header, Span
from hotswap.stream.layout import INDEX
from hotswap.stream.log import check_plain
from hotswap.stream.place import Place, opened
from hotswap.stream.source_file import header_of
from hotswap.weights.layout import Layout, find_layout
from hotswap.weights.readable import AnyFile, AnyFolder
from hotswap.weights.roots import Allowed

__all__ = [
    "StoredFile",
    "StoredTensor",
    "StoredTensors",
    "is_text",
    "is_weight_file",
    "opened_seed",
]

_MAX_HEADER_BYTES = 100 * 2**20
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One open file and its header."""

    file: AnyFile
    header: Header


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Where one tensor's bytes are."""

    name: str
    file: AnyFile
    span: Span

    def read_into(self, out: memoryview, *, offset: int = 0) -> None:
        """Fill ``out`` from byte ``offset`` of the tensor on. Raises: OSError."""
        self.file.read_at(self.span.offset + offset, out)

    def check(self) -> None:
        """Raises: OSError when its file was changed since it was opened."""
        self.file.read_at(self.span.offset)


def is_weight_file(name: str) -> bool:
    """Whether ``name`` is weights, or an index of some."""
    return name.endswith((*_WEIGHTS, ".index.json"))


def is_text(name: str) -> bool:
    """Whether a file's name is UTF-8: states and journals, being JSON, can write no other."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class StoredTensors(Closing):
    """The tensors of a checkpoint directory, open for reading."""

    def __init__(self, folder: AnyFolder, *, timed: bool = False) -> None:
        """Read what ``folder`` holds. ``timed``: its digest changes with the files' times too.

        Raises: UpdateRejected (SourceNotReady and VersionMalformed among it).
        """
        self.folder = folder
        self._stack = ExitStack()
        try:
            layout = find_layout(folder)
            _check_layout(folder, layout)
            self.files: Mapping[str, StoredFile] = {}
            self.digest: str = self._open(folder, layout, timed)
            self.tensors: Mapping[str, StoredTensor] = _placed(folder, layout, self.files)
        except BaseException:
            self._stack.close()
            raise
        self.indexed: bool = layout.file_of is not None

    @classmethod
    def at(
        cls,
        directory: Place,
        *,
        allowed: Allowed | None = None,
        timed: bool = False,
        with_log: bool = False,
    ) -> Self:
        """Open ``directory``; ``with_log``: for who applies what lies beside its files.

        Raises: UpdateRejected, without it also for a local checkpoint with a log.
        """
        if isinstance(directory, Path) and not with_log:
            _check_plain(directory)
        folder = opened(directory, allowed=allowed)
        try:
            return cls(folder, timed=timed)
        except BaseException:
            folder.close()
            raise

    def __repr__(self) -> str:
        return f"<StoredTensors {self.folder.path} {len(self.tensors)} tensors>"

    def close(self) -> None:
        """Close every file and the directory. Idempotent."""
        self._stack.close()
        self.folder.close()

    @property
    def lengths(self) -> dict[str, int]:
        """Tensor name -> bytes."""
        return {name: tensor.span.length for name, tensor in self.tensors.items()}

    def side_files(self) -> tuple[str, ...]:
        """Names of what is no weights and lies beside them: configuration, tokenizer.

        What is not named in UTF-8 is no part of a checkpoint.
        """
        names = (n for n in self.folder.names() if not n.startswith(".") and n != INDEX)
        names = (n for n in names if is_text(n))
        return tuple(sorted(n for n in names if not is_weight_file(n) and self._is_file(n)))

    def _is_file(self, name: str) -> bool:
        try:
            self.folder.open_file(name).close()
        except UpdateRejected:
            return False
        return True

    def _open(self, folder: AnyFolder, layout: Layout, timed: bool) -> str:
        digest = xxhash.xxh3_128()
        if layout.file_of is not None:
            with self._stack.enter_context(folder.open_file(INDEX)) as index:
                digest.update(index.read_bytes(0, index.size_bytes))
        files = dict[str, StoredFile]()
        for name in layout.files:
            file = self._stack.enter_context(folder.open_file(name))
            source = f"{folder.path}: {name}"
            try:
                header, text = header_of(file, source=source, at_most=_MAX_HEADER_BYTES)
            except OSError as error:
                raise SourceNotReady(f"{source}: cannot be read ({error})") from error
            stamp = file.stamp if timed else "0"
            digest.update(f"{name}\0{file.size_bytes}\0{stamp}\0".encode())
            digest.update(text)
            files[name] = StoredFile(file=file, header=header)
        self.files = files
        return digest.hexdigest()


def _check_plain(directory: Path) -> None:
    with suppress(OSError, ValueError):  # opening it says what is wrong with it
        check_plain(directory)


def _check_layout(folder: AnyFolder, layout: Layout) -> None:
    if not layout.is_safetensors:
        raise VersionMalformed(
            f"{folder.path}: holds {layout.files[0]}, wanted safetensors; a delta needs to know "
            "where each tensor's bytes are"
        )
    unspelled = [name for name in layout.files if not is_text(name)]
    if unspelled:
        raise VersionMalformed(
            f"{folder.path}: the name {unspelled[0]!a} is no UTF-8; rename the file"
        )


def _placed(
    folder: AnyFolder, layout: Layout, files: Mapping[str, StoredFile]
) -> dict[str, StoredTensor]:
    placed = dict[str, StoredTensor]()
    for file_name, stored in files.items():
        for name, span in stored.header.spans.items():
            if layout.file_of is not None and layout.file_of.get(name) != file_name:
                continue
            if name in placed:
                raise VersionMalformed(
                    f"{folder.path}: tensor {name!r:.200} is in two files, wanted it in one"
                )
            placed[name] = StoredTensor(name=name, file=stored.file, span=span)
    lacking = sorted((layout.file_of or {}).keys() - placed.keys())
    if lacking:
        raise VersionMalformed(
            f"{folder.path}: the index names {len(lacking)} tensors that its files lack "
            f"({lacking[0]!r:.200}); write the checkpoint again"
        )
    _check_no_delta(folder, files, indexed=layout.file_of is not None)
    return placed


def _check_no_delta(folder: AnyFolder, files: Mapping[str, StoredFile], *, indexed: bool) -> None:
    """A delta's blobs are no checkpoint: without their index, which is written last, and with
    one that a single wrong byte has made that of a full version."""
    for name, stored in files.items():
        header = stored.header
        blobs = all(s.dtype == "U8" and len(s.shape) == 1 for s in header.spans.values())
        if not (blobs and header.spans and header.spans.keys() == header.metadata.keys()):
            continue
        if indexed:
            raise VersionMalformed(
                f"{folder.path}: {name} holds deltas (tensor {min(header.spans)!r:.200} is one), "
                f"but {INDEX} says no delta_encoding, wanted it in its metadata; publish the "
                "version again"
            )
        raise SourceNotReady(
            f"{folder.path}: {name} holds deltas and there is no {INDEX} (yet); wait until "
            "the version is whole and pull again"
        )


def opened_seed(
    directory: Place, *, allowed: Allowed | None, wrong: type[StreamError], timed: bool = False
) -> StoredTensors:
    """``StoredTensors.at`` whose rejections are ``wrong`` unless they are more exact."""
    with raised_as(wrong):
        return StoredTensors.at(directory, allowed=allowed, timed=timed)
