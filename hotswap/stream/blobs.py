"""The blobs of one delta version: read whole, matched against the index, kept compressed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hotswap.stream.at_once import each_of
from hotswap.stream.checksums import is_checksum
from hotswap.stream.encodings import Bytes, Encoding, apply, max_compressed_bytes
from hotswap.stream.errors import SourceNotReady, VersionMalformed
from hotswap.stream.header import Header, Span, header_room, parse_header
from hotswap.stream.layout import DeltaIndex, is_number
from hotswap.stream.source_file import header_text, read_whole
from hotswap.weights.readable import AnyFile, AnyFolder

__all__ = ["Blob", "Delta", "blobs_of", "locate_deltas", "read_deltas"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """How one version changes one tensor. ``blob`` views the file that was read."""

    version: int
    name: str
    encoding: Encoding
    blob: memoryview
    checksum_format: str
    checksum: str

    @property
    def where(self) -> str:
        """Version and tensor, for messages."""
        return f"version {self.version}, tensor {self.name!r:.200}"

    def apply(self, tensor: Bytes) -> None:
        """Turn ``tensor`` into the version's bytes. Raises: DeltaDamaged, nothing changed."""
        apply(self.encoding, self.blob, tensor, where=self.where)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """Where a delta lies at the source; its header was checked, its bytes were not read."""

    index: DeltaIndex
    name: str
    file: str
    span: Span
    checksum: str

    def read(self, folder: AnyFolder) -> Delta:
        """The delta. Raises: UpdateRejected when the file is gone, OSError."""
        with folder.open_file(self.file) as file:
            return self.read_from(file)

    def read_from(self, file: AnyFile) -> Delta:
        """The delta, from its file. Raises: OSError."""
        whole = bytearray(self.span.length)
        file.read_at(self.span.offset, memoryview(whole))
        return _delta(self.index, self.name, memoryview(whole), self.checksum)

    def found_in(self, whole: memoryview) -> Delta:
        """The delta, of its file that was read ``whole``."""
        begin = self.span.offset
        blob = whole[begin : begin + self.span.length]
        return _delta(self.index, self.name, blob, self.checksum)


def locate_deltas(
    folder: AnyFolder, index: DeltaIndex, lengths: Mapping[str, int], *, stamped: bool = False
) -> Mapping[str, Blob]:
    """As ``read_deltas``, but of headers alone. Raises: SourceNotReady, VersionMalformed."""
    blobs = dict[str, Blob]()
    for file, mapped in _by_file(folder, index, lengths):
        source = f"{folder.path}: {file}"
        header = parse_header(header_text(folder, file, at_most=header_room(mapped)), source=source)
        for blob in blobs_of(header, index, mapped, file=file, source=source, stamped=stamped):
            blobs[blob.name] = blob
    return blobs


def blobs_of(
    header: Header,
    index: DeltaIndex,
    lengths: Mapping[str, int],
    *,
    file: str,
    source: str,
    stamped: bool = False,
) -> Iterator[Blob]:
    """What the ``header`` of ``file`` says; ``lengths`` of the tensors that it has to be about.

    ``source`` names the file in messages. Raises: SourceNotReady, VersionMalformed.
    """
    for name, span, checksum in _checked(header, index, lengths, source, stamped=stamped):
        most = max_compressed_bytes(index.encoding, lengths[name])
        if span.length > most:
            raise VersionMalformed(
                f"{source}: tensor {name!r:.200} has a delta of {span.length} bytes, wanted at "
                f"most {most} for a tensor of this length"
            )
        yield Blob(index=index, name=name, file=file, span=span, checksum=checksum)


def read_deltas(
    folder: AnyFolder, index: DeltaIndex, lengths: Mapping[str, int], *, stamped: bool = False
) -> Mapping[str, Delta]:
    """Every tensor that the version changes, by name; reads only files that the index names.

    ``lengths``: tensor name -> bytes, of the checkpoint that the deltas are for; what is
    read is bounded by it. ``stamped``: every file says the version in its metadata, and
    one that says another is not ready.

    Raises: SourceNotReady, VersionMalformed.
    """

    def read(one: tuple[str, Mapping[str, int]]) -> tuple[Header, memoryview]:
        file, mapped = one
        room = header_room(mapped)
        most = sum(max_compressed_bytes(index.encoding, length) for length in mapped.values())
        return read_whole(folder, file, header_at_most=room, at_most=room + most)

    deltas, files = dict[str, Delta](), list(_by_file(folder, index, lengths))
    contents = each_of(folder.path, files, read)
    for (file, mapped), (header, whole) in zip(files, contents, strict=True):
        source = f"{folder.path}: {file}"
        for name, span, checksum in _checked(header, index, mapped, source, stamped=stamped):
            blob = whole[span.offset : span.offset + span.length]
            deltas[name] = _delta(index, name, blob, checksum)
    return deltas


def _by_file(
    folder: AnyFolder, index: DeltaIndex, lengths: Mapping[str, int]
) -> Iterator[tuple[str, dict[str, int]]]:
    """Each file that the index names, and the lengths of the tensors that it has to be about."""
    unknown = sorted(index.file_of.keys() - lengths.keys())
    if unknown:
        raise VersionMalformed(
            f"{folder.path}: changes {len(unknown)} tensors that the checkpoint lacks "
            f"({unknown[0]!r:.200}); give the base checkpoint of this model"
        )
    for file in sorted(set(index.file_of.values())):
        yield file, {name: lengths[name] for name, of in index.file_of.items() if of == file}


def _delta(index: DeltaIndex, name: str, blob: memoryview, checksum: str) -> Delta:
    return Delta(
        version=index.version,
        name=name,
        encoding=index.encoding,
        blob=blob,
        checksum_format=index.checksum_format,
        checksum=checksum,
    )


def _checked(
    header: Header, index: DeltaIndex, lengths: Mapping[str, int], source: str, *, stamped: bool
) -> Iterator[tuple[str, Span, str]]:
    """Each tensor that a file has a blob of, where that lies, and its checksum."""
    checksums = _checksums(header, index, lengths, source=source, stamped=stamped)
    for name, span in header.spans.items():
        _check_span(span, f"{source}: tensor {name!r:.200}")
        yield name, span, checksums[name]


def _checksums(
    header: Header,
    index: DeltaIndex,
    lengths: Mapping[str, int],
    *,
    source: str,
    stamped: bool,
) -> dict[str, str]:
    checksums = dict(header.metadata)
    if stamped:
        _check_stamp(checksums.pop("version", None), index, source)
    for what, names in (("its header", header.spans), ("its checksums", checksums)):
        different = sorted(names.keys() ^ lengths.keys())
        if different:
            raise VersionMalformed(
                f"{source}: {what} and the index disagree about {len(different)} tensors "
                f"({different[0]!r:.200}), wanted each tensor once, in the file that the index "
                "says; publish it again"
            )
    for name, text in checksums.items():
        if not is_checksum(index.checksum_format, text):
            raise VersionMalformed(
                f"{source}: tensor {name!r:.200} has the checksum {text!r:.80}, which is no "
                f"{index.checksum_format}"
            )
    return checksums


def _check_stamp(stamp: str | None, index: DeltaIndex, source: str) -> None:
    if stamp is None or not is_number(stamp) or int(stamp) != index.version:
        raise SourceNotReady(
            f"{source}: is stamped {stamp!r:.80}, but the index says {index.version}: it was "
            "read while it was written"
        )


def _check_span(span: Span, where: str) -> None:
    if span.dtype != "U8" or span.shape != (span.length,):
        raise VersionMalformed(
            f"{where}: {span.dtype} {list(span.shape)} of {span.length} bytes, wanted U8 of one "
            "dimension"
        )
