"""What the pulls of crash tests find there, and bring to which version."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import safetensors.numpy

from hotswap.stream import Keep, LocalDiskFailed, journal_room, log_files, pull
from hotswap.stream.disk import Disk
from hotswap.stream.layout import INDEX
from hotswap.stream.log import file_of
from hotswap.stream.state import Reserved, unfinished
from tests.unit.stream.faulty_disk import FaultyDisk
from tests.unit.stream.streams import Stream, publish

_Setup = Callable[[Stream], int]


def _xor(stream: Stream) -> int:
    stream.add("xor")
    pull_now(stream, 0)
    return 1


def _overwrite(stream: Stream) -> int:
    stream.add("overwrite", share=0.6)
    pull_now(stream, 0)
    return 1


def _gap(stream: Stream) -> int:
    stream.add("gap")
    pull_now(stream, 0)
    return 1


def _fold(stream: Stream) -> int:
    for encoding in ("xor", "overwrite", "gap"):
        stream.add(encoding)
    pull_now(stream, 0)
    return 3


def _dense(stream: Stream) -> int:
    """As a fold, of so much that a journal would be as long as the files: they are made anew."""
    for encoding in ("gap", "xor", "gap"):
        stream.add(encoding, share=0.6)
    pull_now(stream, 0)
    return 3


def _seed(stream: Stream) -> int:
    stream.add("xor")
    return 1


def _reseed(stream: Stream) -> int:
    for encoding in ("xor", "full"):
        stream.add(encoding)
    pull_now(stream, 2)
    return 1


def _full(stream: Stream) -> int:
    for encoding in ("xor", "full", "overwrite"):
        stream.add(encoding)
    pull_now(stream, 1)
    return 3


def _aggregate(stream: Stream) -> int:
    for encoding in ("xor", "gap", "overwrite"):
        stream.add(encoding)
    add_aggregate(stream, 2)
    return 3


def _recovery(stream: Stream) -> int:
    """An earlier pull could not write any more once its journal was durable."""
    target = _fold(stream)

    def fault(number: int) -> None:
        if "rename" in disk.calls[:number]:
            raise OSError(errno.EIO, "Input/output error")

    disk = FaultyDisk(fault)
    with pytest.raises(LocalDiskFailed, match="the next pull finishes it"):
        pull_now(stream, target, disk=disk)
    assert Reserved(stream.local).journal.exists()
    return target


def _damaged(stream: Stream) -> int:
    """A byte of the copy changed since the last pull.

    It is in the tensor that is read last, so that the calls before are always the same.
    """
    target = _fold(stream)
    path = stream.local / "model-00001-of-00002.safetensors"
    content = path.read_bytes()
    at = 8 + int.from_bytes(content[:8], "little")
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    return target


def _log_begun(stream: Stream) -> int:
    """No log yet, but what a pull left that was killed before there was one."""
    for encoding in ("xor", "overwrite", "gap"):
        stream.add(encoding)
    pull_now(stream, 0)
    unfinished(Reserved(stream.local).log_marker).write_text("{")
    return 3


def _log(stream: Stream) -> int:
    """A log, and the file of a version that it does not have."""
    for encoding in ("xor", "gap", "overwrite"):
        stream.add(encoding)
    pull_now(stream, 0)
    pull_now(stream, 1, keep=Keep.LOG)
    (Reserved(stream.local).log / file_of(2)).write_text("half a version")
    return 3


def _folded(stream: Stream) -> int:
    """A log that a pull into the files finds there."""
    target = _log(stream)
    pull_now(stream, 2, keep=Keep.LOG)
    return target


def _compacted(stream: Stream) -> int:
    """A log that is written into the files with no pull, as it is in the background."""
    _log(stream)
    pull_now(stream, 2, keep=Keep.LOG)
    return 2


def _back(stream: Stream) -> int:
    """Back to before the log: the state will be, to the bit, the one that the log is on."""
    for encoding in ("xor", "gap"):
        stream.add(encoding)
    pull_now(stream, 1)
    pull_now(stream, 2, keep=Keep.LOG)
    return 1


def _copies(stream: Stream) -> int:
    """The first pull with a second copy: its files are new ones."""
    stream.add("xor")
    pull_now(stream, 0)
    return 1


def _spare(stream: Stream) -> int:
    """There are spares, as after every pull but the first one."""
    stream.add("xor")
    stream.add("gap", share=0.6)
    pull_now(stream, 0)
    pull_now(stream, 1, keep=Keep.COPIES)
    return 2


def _spare_fold(stream: Stream) -> int:
    """Spares that a killed pull had begun to write, and that somebody cut short."""
    for encoding in ("xor", "overwrite", "gap", "xor"):
        stream.add(encoding)
    pull_now(stream, 0)
    pull_now(stream, 1, keep=Keep.COPIES)
    paths = Reserved(stream.local)
    first, second = sorted(paths.spare.iterdir())
    first.rename(paths.incoming / first.name)
    (paths.incoming / "of another layout.safetensors").write_bytes(b"left")
    os.truncate(second, second.stat().st_size // 2)
    return 4


def _spare_folded(stream: Stream) -> int:
    """A log that a pull with a second copy finds there."""
    target = _log(stream)
    pull_now(stream, 2, keep=Keep.LOG)
    return target


def _spare_reseed(stream: Stream) -> int:
    """Back to an earlier version: files of a second copy are there, and of no use."""
    for encoding in ("xor", "gap", "overwrite"):
        stream.add(encoding)
    pull_now(stream, 2, keep=Keep.COPIES)
    pull_now(stream, 3, keep=Keep.COPIES)
    assert list(Reserved(stream.local).spare.iterdir())
    return 1


def _spare_recovery(stream: Stream) -> int:
    """An earlier pull could not write any more once one of its files had changed places."""
    target = _spare(stream)

    def fault(number: int) -> None:
        if disk.calls[:number].count("rename") > renames:
            raise OSError(errno.EIO, "Input/output error")

    renames = 3
    disk = FaultyDisk(fault)
    with pytest.raises(LocalDiskFailed, match="the next pull finishes it"):
        pull_now(stream, target, disk=disk, keep=Keep.COPIES)
    assert Reserved(stream.local).journal.exists()
    return target


def _back_in_place(stream: Stream) -> int:
    """A pull without a second copy, where there is one."""
    for encoding in ("xor", "gap"):
        stream.add(encoding)
    pull_now(stream, 0)
    pull_now(stream, 1, keep=Keep.COPIES)
    return 2


SCENARIOS: Mapping[str, _Setup] = {
    "xor": _xor,
    "overwrite": _overwrite,
    "gap": _gap,
    "fold": _fold,
    "dense": _dense,
    "seed": _seed,
    "reseed": _reseed,
    "full": _full,
    "aggregate": _aggregate,
    "recovery": _recovery,
    "damaged": _damaged,
    "log_begun": _log_begun,
    "log": _log,
    "folded": _folded,
    "back": _back,
    "copies": _copies,
    "spare": _spare,
    "spare_fold": _spare_fold,
    "spare_folded": _spare_folded,
    "spare_reseed": _spare_reseed,
    "spare_recovery": _spare_recovery,
    "back_in_place": _back_in_place,
    "compacted": _compacted,
}
LOGGED = ("log_begun", "log")
COPYING = ("copies", "spare", "spare_fold", "spare_folded", "spare_reseed", "spare_recovery")
COMPACTED = "compacted"
DENSE = "dense"


@contextmanager
def length_counts_from(journal_bytes: int) -> Iterator[None]:
    """Within it journals of ``journal_bytes`` are long: a test's files are short."""
    with patch.object(journal_room, "_LEAST_BYTES", journal_bytes):
        yield


@contextmanager
def a_write_for_each_blob() -> Iterator[None]:
    """Within it a version of a log is cut wherever a blob of it ends, and not each MiB."""
    with patch.object(log_files, "_WRITE_BYTES", 1):
        yield


def pull_now(
    stream: Stream, target: int, *, disk: Disk | None = None, keep: Keep = Keep.FILES
) -> None:
    """Pull with one thread, so that calls come in the same order each time."""
    with a_write_for_each_blob():
        pull(
            stream.local,
            stream.source,
            target,
            base_dir=stream.base,
            threads=1,
            disk=disk,
            keep=keep,
        )


def add_aggregate(stream: Stream, version: int, *, stamp: int | None = None) -> Path:
    """Publish ``aggregate/``, from the base to ``version``, stamped."""
    directory = stream.source / "aggregate"
    shutil.rmtree(directory, ignore_errors=True)
    made = publish(
        stream.source / "made", version, stream.tensors[0], stream.tensors[version], files=2
    )
    made.rename(directory)
    (stream.source / "made").rmdir()
    for file in directory.glob("*.safetensors"):
        content = file.read_bytes()
        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + length])["__metadata__"]
        blobs = {name: np.asarray(v) for name, v in safetensors.numpy.load(content).items()}
        metadata["version"] = f"{version if stamp is None else stamp:06d}"
        file.write_bytes(safetensors.numpy.save(blobs, metadata=metadata))
    index = json.loads((directory / INDEX).read_text())
    index["metadata"]["base_version"] = "000000"
    (directory / INDEX).write_text(json.dumps(index))
    return directory
