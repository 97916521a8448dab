"""How long the journal of a change may become, which a pull has to know before it makes one.

A journal in place of a tenth of the elements is as long as the files: then the files are made
anew beside the old ones, which takes no more room and one write instead of two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from hotswap.errors import UpdateRejected
from hotswap.stream.blobs import Delta
from hotswap.stream.encodings import Encoding
from hotswap.stream.gap_layout import head_of
from hotswap.stream.stored import StoredTensors
from hotswap.stream.words import WORD_BYTES

__all__ = ["densely_changed"]

_LEAST_BYTES = 64 * 2**20
"""A shorter journal is not worth a second thought."""

_SHARE = 0.25
"""From which part of a file on its journal costs as much as a new file."""

_RECORDED_BYTES = WORD_BYTES + 4
"""What a journal takes for an element that changes, at most: its word, and where that is."""

_BLOB_FACTOR = 4
"""How much longer than its blob the journal of an ``xor`` or ``overwrite`` of single elements is:
as measured at 1 % (`contrib.bench`), where the blob of ``xor`` has 2.7 bytes an element."""


def densely_changed(
    stored: StoredTensors, changed: Collection[str], deltas: Callable[[str], Sequence[Delta]]
) -> tuple[str, ...]:
    """The files of ``stored`` of which ``changed`` tensors would fill a long journal.

    ``deltas``: all of a tensor's, oldest first. An estimate: faults of deltas show later.
    """
    bytes_of = dict.fromkeys(stored.files, 0)
    for name in changed:
        tensor = stored.tensors[name]
        length = tensor.span.length
        journal = sum(_journal_bytes(delta, length) for delta in deltas(name))
        bytes_of[tensor.file.name] += min(journal, length)
    return tuple(
        name
        for name, size in bytes_of.items()
        if size >= max(_LEAST_BYTES, _SHARE * stored.files[name].header.file_bytes)
    )


def _journal_bytes(delta: Delta, length: int) -> int:
    if delta.encoding is not Encoding.GAP:
        return _BLOB_FACTOR * len(delta.blob)
    try:
        return _RECORDED_BYTES * head_of(delta.blob, length, where=delta.where).changed
    except UpdateRejected:
        return 0
