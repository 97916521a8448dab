"""Writing one version by every rank: files numbered without gaps, the index last, by rank 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotswap.stream.frames import Bytes
from hotswap.stream.publisher_diff import Made
from hotswap.stream.publisher_files import (
    AnyDraft,
    Blob,
    blob_file_parts,
    full_file_parts,
    weight_map_of,
)
from hotswap.stream.publisher_index import delta_index, full_index
from hotswap.stream.publisher_ranks import Ranks, agreed
from hotswap.stream.publisher_tensors import HostTensor
from hotswap.stream.stored import StoredTensors

__all__ = ["Whole", "write_delta", "write_full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """This rank's tensors of a full version; ``content`` makes the new bytes of one of them."""

    tensors: Sequence[HostTensor]
    content: Callable[[HostTensor], Bytes]


def write_delta(
    draft: AnyDraft, version: int, blobs: Sequence[Blob], made: Made, ranks: Ranks
) -> int:
    """Publish ``blobs``, this rank's, as ``version``; the bytes that this rank wrote.

    Raises: StreamError, OSError; a version that is not whole is removed again.
    """
    names = [[blob.name for blob in blobs]] if blobs else []

    def write(files: Sequence[str]) -> int:
        return sum(draft.write(file, blob_file_parts(blobs)) for file in files)

    def index(weight_map: dict[str, str], _: int) -> dict[str, object]:
        return delta_index(
            version,
            base=version - 1,
            encoding=made.encoding,
            checksum_format=made.checksum_format,
            weight_map=weight_map,
        )

    return _written(draft, names, write, index, ranks, first=0)


def write_full(
    draft: AnyDraft, version: int, whole: Whole, ranks: Ranks, *, side_dir: Path | None
) -> int:
    """Publish ``whole`` as ``version``, a checkpoint with the side files of ``side_dir``.

    As ``write_delta``.
    """
    parts = _parts(whole.tensors, draft.file_bytes)

    def write(files: Sequence[str]) -> int:
        written = sum(
            draft.write(file, full_file_parts(part, whole.content))
            for file, part in zip(files, parts, strict=True)
        )
        if ranks.rank == 0 and side_dir is not None:
            written += _copy_sides(draft, side_dir)
        return written

    def index(weight_map: dict[str, str], size_bytes: int) -> dict[str, object]:
        return full_index(version, size_bytes=size_bytes, weight_map=weight_map)

    names = [[one.name for one in part] for part in parts]
    return _written(draft, names, write, index, ranks, first=1)


def _written(
    draft: AnyDraft,
    names: Sequence[Sequence[str]],
    write: Callable[[Sequence[str]], int],
    index: Callable[[dict[str, str], int], dict[str, object]],
    ranks: Ranks,
    *,
    first: int,
) -> int:
    """``names``: those in each file of this rank; ``write`` writes them under given names."""

    def begin() -> None:
        if ranks.rank == 0:
            draft.begin()

    try:
        _, told = agreed(ranks, begin, told=lambda _: {"files": names, "mark": draft.mark})
        draft.mark = told[0]["mark"]
        named = [part for one in told for part in one["files"]]
        weight_map = weight_map_of(named, first=first, mark=draft.mark)
        files = [weight_map[part[0]] for part in names]
        written, sizes = agreed(ranks, lambda: write(files), told=lambda size: {"size": size})
        total = sum(one["size"] for one in sizes)

        def publish() -> None:
            if ranks.rank == 0:
                draft.publish(index(weight_map, total))

        agreed(ranks, publish, told=lambda _: {})
    except BaseException:
        if ranks.rank == 0:
            draft.discard()
        raise
    return written


def _parts(tensors: Sequence[HostTensor], file_bytes: int) -> list[list[HostTensor]]:
    parts, room = list[list[HostTensor]](), 0
    for one in tensors:
        if not parts or len(one.content) > room:
            parts.append([])
            room = file_bytes
        parts[-1].append(one)
        room -= len(one.content)
    return parts


def _copy_sides(draft: AnyDraft, side_dir: Path) -> int:
    """Configuration and tokenizer: with them a full version can be served as it is."""
    written = 0
    with StoredTensors.at(side_dir) as base:
        for name in base.side_files():
            with base.folder.open_file(name) as file:
                written += draft.write(name, [file.read_bytes(0, file.size_bytes)])
    return written
