"""Published versions against their own checksums, without a local checkpoint.

Rules:

* Checksums are of a tensor's whole new bytes: a tensor is read from where a chain of
  deltas begins, and every version of the chain is applied and checked on the way, in memory.
* A thread holds one tensor and one blob of it; only where versions branch it holds more.
* A full version has no checksums: its headers and sizes are checked, that its tensors are
  those of the base or of the full version before it, and a chain begins there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hotswap.errors import UpdateRejected
from hotswap.stream.aggregate import find_aggregate
from hotswap.stream.apply import bytes_of
from hotswap.stream.blobs import Blob, locate_deltas
from hotswap.stream.checksums import checksum
from hotswap.stream.encodings import Bytes
from hotswap.stream.errors import DeltaDamaged, SourceNotReady, StreamError, VersionMissing
from hotswap.stream.layout import DeltaIndex, directory_of, published_versions, read_index
from hotswap.stream.objects import Objects
from hotswap.stream.parallel import run_all
from hotswap.stream.place import Place, local_directory, opened, place_of
from hotswap.stream.progress import Progress, Tally
from hotswap.stream.shapes import Shapes
from hotswap.stream.source import Source
from hotswap.stream.stored import StoredTensor, StoredTensors
from hotswap.stream.verified import Faults, Verified

__all__ = ["verify_source"]


def verify_source(
    source: str | Path | Objects,
    *,
    base_dir: Path | None = None,
    threads: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Verified:
    """Check every version of ``source``, and the aggregate. ``base_dir`` is version 0.

    Raises: SourceNotReady when ``source`` cannot be listed or holds no version.
    """
    source = place_of(source)
    if base_dir is not None:
        base_dir = local_directory(base_dir, "the base checkpoint")
    run = _Run(source=source, faults=Faults(), tally=Tally(progress))
    numbers = published_versions(source)
    if not numbers:
        raise SourceNotReady(f"{source}: holds no published version (yet)")
    full = [number for number in numbers if run.look(directory_of(source, number), number)]
    note = _aggregate_note(run, source) if base_dir is not None else None
    count = threads or os.cpu_count()
    with ThreadPoolExecutor(count, thread_name_prefix="hotswap-verify") as pool:
        if base_dir is not None:
            run.check_from("base", 0, base_dir, pool)
        for number in full:
            run.check_from(directory_of(source, number).name, number, None, pool)
    note = "; ".join(filter(None, [note, run.doubts_base()])) or None
    run.blame_unreached(base_is_known=base_dir is not None)
    full = [number for number in full if number in run.reached]
    if full:
        listed = ", ".join(map(str, full))
        note = "; ".join(
            filter(None, [note, f"full versions have no checksums ({listed}): headers and sizes"])
        )
    return Verified(
        path=str(source),
        versions=tuple(sorted(number for number in run.reached if number > 0)),
        checks=run.faults.checks,
        checked_bytes=run.faults.checked_bytes,
        faults=run.faults.found,
        note=note,
    )


def _aggregate_note(run: _Run, source: Place) -> str | None:
    """Take the aggregate into the run; why not, when it is to be skipped."""
    directory = find_aggregate(source)
    if directory is None:
        return None
    try:
        with opened(directory) as folder:
            index = read_index(folder, version=None, names=None)
        if index is None or index.base_version:
            raise StreamError(f"{directory}: is no delta on the base")
    except UpdateRejected as error:
        return f"the aggregate is skipped ({error})"
    run.add(_AGGREGATE, directory, index)
    return None


_AGGREGATE = -1
"""The number of the aggregate among the versions."""


@dataclass(kw_only=True)
class _Run:
    """``nodes`` are the deltas by number, ``children`` those that build on a number.

    ``reached`` are full versions that could be opened, and deltas on what could. ``shapes``
    are those of the base or the last full version.
    """

    source: Place
    faults: Faults
    tally: Tally
    nodes: dict[int, tuple[Place, DeltaIndex]] = field(default_factory=dict)
    children: dict[int, list[int]] = field(default_factory=dict)
    reached: set[int] = field(default_factory=set)
    shapes: Shapes | None = None

    def look(self, directory: Place, number: int) -> bool:
        """Whether ``number`` is a full version; a delta is noted, a fault too."""
        try:
            with opened(directory) as folder:
                index = read_index(folder, version=number, names=None)
        except UpdateRejected as error:
            self.faults.add(directory.name, error)
            return False
        if index is not None:
            self.add(number, directory, index)
        return index is None

    def add(self, number: int, directory: Place, index: DeltaIndex) -> None:
        """Note a delta."""
        self.nodes[number] = directory, index
        self.children.setdefault(index.base_version, []).append(number)

    def check_from(self, where: str, start: int, base_dir: Path | None, pool: Executor) -> None:
        """Check everything that builds on the full version ``start``, or on ``base_dir``."""
        try:
            with self._opened(start, base_dir) as stored:
                if self.shapes is not None:
                    self.shapes.check(stored)
                self.shapes = Shapes.seen_in(stored)
                self.reached.add(start)
                located = self._located(start, stored.lengths)
                names = sorted({name for blobs in located.values() for name in blobs})
                total = sum(stored.lengths[n] for blobs in located.values() for n in blobs)
                with self.tally.phase(f"versions on {start}", total_bytes=total):
                    run_all(
                        pool,
                        [
                            (
                                stored.lengths[name],
                                partial(self._check, where, start, stored.tensors[name], located),
                            )
                            for name in names
                        ],
                    )
        except UpdateRejected as error:
            self.faults.add(where, error)

    def blame_unreached(self, *, base_is_known: bool) -> None:
        """Say why a version was not checked, unless something is said of it already."""
        for number, (directory, index) in self.nodes.items():
            if number in self.reached or directory.name in self.faults.places:
                continue
            before = index.base_version
            if before == 0 and not base_is_known:
                why = (
                    "builds on the base, which was not given: give it, by --base (in Python "
                    "base_dir)"
                )
            elif before in self.nodes or before == 0 or self._is_at_fault(before):
                why = f"builds on version {before}, which could not be checked"
            else:
                why = f"builds on version {before}, which is missing"
            error = VersionMissing(f"{directory}: was not checked: it {why}")
            self.faults.add(directory.name, error)

    def doubts_base(self) -> str | None:
        """What to say when a version on the base fits none of its tensors."""
        for number in self.children.get(0, ()):
            directory, index = self.nodes[number]
            wrong = {fault.tensor for fault in self.faults.found if fault.where == directory.name}
            if len(index.file_of) > 1 and wrong >= index.file_of.keys():
                return (
                    f"{directory.name} gives wrong bytes for every tensor: was it made for another "
                    "base checkpoint than this --base?"
                )
        return None

    def _is_at_fault(self, number: int) -> bool:
        return directory_of(self.source, number).name in self.faults.places

    def _opened(self, start: int, base_dir: Path | None) -> StoredTensors:
        if base_dir is not None:
            return StoredTensors.at(base_dir)
        return Source(self.source, names=(), allowed=None).full(start)

    def _located(self, start: int, lengths: Mapping[str, int]) -> dict[int, Mapping[str, Blob]]:
        """The blobs of every version that can be reached from ``start``; headers are read."""
        located = dict[int, Mapping[str, Blob]]()
        todo = list(self.children.get(start, ()))
        while todo:
            number = todo.pop()
            directory, index = self.nodes[number]
            try:
                with opened(directory) as folder:
                    stamped = number == _AGGREGATE
                    located[number] = locate_deltas(folder, index, lengths, stamped=stamped)
            except UpdateRejected as error:
                self.faults.add(directory.name, error)
                continue
            self.reached.add(number)
            todo += self.children.get(number, ())
        return located

    def _check(
        self,
        where: str,
        start: int,
        tensor: StoredTensor,
        located: Mapping[int, Mapping[str, Blob]],
    ) -> None:
        """Take one tensor through every version that is reached from ``start``."""
        content = bytes_of(bytearray(tensor.span.length))
        try:
            tensor.read_into(content.data)
        except OSError as error:
            self.faults.add(where, error, tensor.name)
            return
        left = [(start, content)]
        while left:
            number, content = left.pop()
            below = [child for child in self.children.get(number, ()) if child in located]
            for child, mine in zip(below, _each_its_own(content, len(below)), strict=True):
                blob = located[child].get(tensor.name)
                if blob is None or self._apply(child, blob, mine):
                    left.append((child, mine))

    def _apply(self, number: int, blob: Blob, content: Bytes) -> bool:
        """Whether ``blob`` gives the bytes that its checksum says."""
        directory, _ = self.nodes[number]
        try:
            with opened(directory) as folder:
                delta = blob.read(folder)
            delta.apply(content)
            seen = checksum(delta.checksum_format, content.data)
            self.faults.checked(len(content))
            self.tally.through(read=len(delta.blob), done=len(content))
            if seen != delta.checksum:
                raise DeltaDamaged(
                    f"{delta.where}: gives bytes with the checksum {seen}, wanted "
                    f"{delta.checksum} ({delta.checksum_format}); publish the version again"
                )
        except (UpdateRejected, OSError) as error:
            self.faults.add(directory.name, error, blob.name)
            return False
        return True


def _each_its_own(content: Bytes, count: int) -> Iterable[Bytes]:
    """``count`` arrays with the same bytes; the last is ``content`` itself, asked for last."""
    for at in range(count):
        yield content if at == count - 1 else content.copy()
