"""Reading a file of a source that may lag, be torn, or mean harm.

Rule: a file is read whole into memory and measured against its own header before a
byte of it is used; what the mount does afterwards does not matter.
"""

from __future__ import annotations

import numpy as np

from hotswap.errors import UpdateRejected
from hotswap.stream.errors import SourceNotReady, StreamError, VersionMalformed, raised_as
from hotswap.stream.header import LENGTH_BYTES, Header, parse_header
from hotswap.weights.readable import AnyFile, AnyFolder

__all__ = ["header_of", "header_text", "read_text", "read_whole", "size_of"]


def read_text(folder: AnyFolder, name: str, *, at_most: int) -> bytes:
    """The bytes of a JSON file. Raises: SourceNotReady, VersionMalformed past ``at_most``."""
    with _open(folder, name) as file:
        if file.size_bytes > at_most:
            raise VersionMalformed(
                f"{folder.path}: {name} has {file.size_bytes} bytes, wanted at most {at_most}"
            )
        return _read(folder, file, 0, file.size_bytes)


def header_of(file: AnyFile, *, source: str, at_most: int) -> tuple[Header, bytes]:
    """The header of a safetensors file, checked against the file's length; and its JSON.

    Raises: SourceNotReady for a file that is shorter than it says, VersionMalformed
    for everything else that is wrong, OSError.
    """
    if file.size_bytes < LENGTH_BYTES:
        raise _short(source, file.size_bytes, f"at least {LENGTH_BYTES}")
    length = int.from_bytes(file.read_bytes(0, LENGTH_BYTES), "little")
    if length > at_most:
        raise VersionMalformed(
            f"{source}: says that its header has {length} bytes, wanted at most {at_most} for "
            "the tensors that it can be about"
        )
    if LENGTH_BYTES + length > file.size_bytes:
        raise _short(source, file.size_bytes, f"{LENGTH_BYTES + length} for its header alone")
    text = file.read_bytes(LENGTH_BYTES, length)
    with raised_as(VersionMalformed):
        header = parse_header(text, source=source)
    if file.size_bytes < header.file_bytes:
        raise _short(source, file.size_bytes, str(header.file_bytes))
    if file.size_bytes > header.file_bytes:
        raise VersionMalformed(
            f"{source}: has {file.size_bytes} bytes, its header says {header.file_bytes}; "
            "write the file again"
        )
    return header, text


def read_whole(
    folder: AnyFolder, name: str, *, header_at_most: int, at_most: int
) -> tuple[Header, memoryview]:
    """A safetensors file in memory, header included, and its header; one look at the file.

    ``at_most`` bounds the whole file. Raises: SourceNotReady when the file is missing, short, or
    changed while it was read; VersionMalformed for everything else that is wrong.
    """
    source = f"{folder.path}: {name}"
    with _open(folder, name) as file:
        try:
            header, text = header_of(file, source=source, at_most=header_at_most)
        except OSError as error:
            raise _changed(source, error) from error
        if header.file_bytes > at_most:
            raise VersionMalformed(
                f"{source}: has {header.file_bytes} bytes, wanted at most {at_most} for the "
                "tensors that it is about"
            )
        # A bytearray would be cleared first, with the GIL held, while a server decodes.
        whole = np.empty(header.file_bytes, np.uint8).data
        try:
            file.read_at(0, whole)
        except OSError as error:
            raise _changed(source, error) from error
    if whole[LENGTH_BYTES : header.data_offset] != text:
        raise _changed(source, "its header changed")
    return header, whole.toreadonly()


def header_text(folder: AnyFolder, name: str, *, at_most: int) -> bytes:
    """The JSON of a safetensors file's header. Raises: SourceNotReady, VersionMalformed."""
    with _open(folder, name) as file:
        source = f"{folder.path}: {name}"
        try:
            return header_of(file, source=source, at_most=at_most)[1]
        except OSError as error:
            raise _changed(source, error) from error


def size_of(folder: AnyFolder, name: str) -> int:
    """How long a file is now. Raises: SourceNotReady, VersionMalformed."""
    with _open(folder, name) as file:
        return file.size_bytes


def _open(folder: AnyFolder, name: str) -> AnyFile:
    with raised_as(SourceNotReady):
        is_there = folder.has(name)
    if not is_there:
        raise SourceNotReady(
            f"{folder.path}: {name} is not there (yet); wait until the version is whole and "
            "pull again"
        )
    try:
        return folder.open_file(name)
    except StreamError:
        raise
    except UpdateRejected as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise SourceNotReady(f"{folder.path}: {name} is gone again; pull again") from error
        raise VersionMalformed(str(error)) from error


def _read(folder: AnyFolder, file: AnyFile, offset: int, length: int) -> bytes:
    try:
        return file.read_bytes(offset, length)
    except OSError as error:
        raise _changed(f"{folder.path}: {file.name}", error) from error


def _short(source: str, have: int, wanted: str) -> StreamError:
    return SourceNotReady(
        f"{source}: {have} bytes are there, wanted {wanted}; wait until the file is whole and "
        "pull again"
    )


def _changed(source: str, what: object) -> StreamError:
    return SourceNotReady(f"{source}: could not be read in one state ({what}); pull again")
