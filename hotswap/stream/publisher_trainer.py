"""``Publisher``: a trainer's side of a stream, from one process or many.

Rules:

* What readers see is whole: a version is written under a hidden name and renamed.
* The next version is compared with what readers have, never with what was meant for them:
  the snapshot moves only after the version is visible, and by the very blobs that they get.
* Whatever fails, the next ``publish`` looks at the source first and goes on from there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hotswap.closing import Closing
from hotswap.counted import counted
from hotswap.stream.checksums import OWN_CHECKSUM, new_hasher
from hotswap.stream.disk import Disk, LocalDisk
from hotswap.stream.encodings import apply, encoding_named
from hotswap.stream.errors import StreamError, VersionMissing
from hotswap.stream.frames import Bytes
from hotswap.stream.objects import Objects
from hotswap.stream.place import Place, local_directory, place_of
from hotswap.stream.progress import Progress, Tally
from hotswap.stream.publisher_aggregate import check_stamps, write_aggregate
from hotswap.stream.publisher_announce import announce
from hotswap.stream.publisher_diff import Diff, Made, advance, copied, diff_of
from hotswap.stream.publisher_files import AnyDraft, Blob, draft_of
from hotswap.stream.publisher_prune import prune
from hotswap.stream.publisher_ranks import Alone, Ranks, agreed
from hotswap.stream.publisher_run import open_run
from hotswap.stream.publisher_share import Told, check_some, given_owners, whole_owners
from hotswap.stream.publisher_snapshot import Snapshot, check_in_base, names_at, restored
from hotswap.stream.publisher_tensors import HostTensor, NamedTensors, size_of
from hotswap.stream.publisher_ties import without_ties
from hotswap.stream.publisher_version import Whole, write_delta, write_full

if TYPE_CHECKING:
    from hotswap.post_write import PostWrite

__all__ = ["Published", "Publisher"]

_log = logging.getLogger("hotswap.publish")
_MAX_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One version that readers can see.

    ``changed`` counts tensors, over all ranks; ``written_bytes`` and ``seconds`` (by phase) are
    of this rank. ``directory`` in an object store is its URL.
    """

    version: int
    directory: Path | str
    full: bool
    changed: int
    written_bytes: int
    seconds: Mapping[str, float]

    def __str__(self) -> str:
        kind = "full" if self.full else f"{counted(self.changed, 'tensor')} changed"
        return f"version {self.version} ({kind}, {self.written_bytes / 1e6:.1f} MB)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """What becomes of ``snapshot`` once ``draft`` is visible."""

    draft: AnyDraft
    diff: Diff
    made: Made
    snapshot: Snapshot


class Publisher(Closing):
    """Publishes one run to ``source``. Use it from one thread; ``close`` it, or use ``with``."""

    def __init__(
        self,
        source: str | Path | Objects,
        *,
        run: str,
        base_dir: Path | None = None,
        encoding: str = "gap",
        checksum_format: str = OWN_CHECKSUM,
        anchor_every: int = 0,
        aggregate_every: int = 0,
        keep: int | None = None,
        ranks: Ranks | None = None,
        threads: int | None = None,
        post_write: Sequence[PostWrite] = (),
        disk: Disk | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """Begin the run ``run`` at an empty source, or go on with it; every rank does.

        ``base_dir``: the checkpoint that servers are started with, version 0. Without it, and
        without ``start_from``, the first version is a full one. Every ``anchor_every``-th
        version is a full one; every ``aggregate_every``-th one rewrites the aggregate, which
        needs ``base_dir``. ``keep``: versions that stay readable, see ``prune``. ``post_write``
        is awaited on rank 0 after each version.

        Raises: StreamError for a source of another run, or one that somebody else publishes
        to, and for numbers that cannot be; UnknownEncoding; OSError.
        """
        counts = {"keep": (keep, 1), "anchor_every": (anchor_every, 0)}
        counts |= {"aggregate_every": (aggregate_every, 0), "threads": (threads, 1)}
        for name, (number, least) in counts.items():
            if number is not None and number < least:
                raise StreamError(f"{name} is {number}, wanted {least} or more")
        if aggregate_every and base_dir is None:
            raise StreamError(
                "an aggregate is a delta on the base checkpoint; "
                "give base_dir (--base of hotswap publish)"
            )
        if not run:
            raise StreamError("the name of the run is empty, wanted one that only it has")
        new_hasher(checksum_format)
        self.source: Place = place_of(source)
        self.run: str = run
        self.version: int = 0
        self._base_dir = base_dir and local_directory(base_dir, "the base checkpoint")
        self._encoding = encoding_named(encoding)
        self._checksum_format = checksum_format
        self._anchor_every = anchor_every
        self._aggregate_every = aggregate_every
        self._keep = keep
        self._ranks = ranks or Alone()
        self._threads = threads or min(_MAX_THREADS, os.cpu_count() or 1)
        self._post_write = tuple(post_write)
        self._disk = disk or LocalDisk()
        self._progress = progress
        self._snapshot: Snapshot | None = None
        self._pending: _Pending | None = None
        self._held = ExitStack()
        self._is_closed = False
        try:
            self.version = self._opened()
            self._pool = self._held.enter_context(
                ThreadPoolExecutor(self._threads, thread_name_prefix="hotswap-publish")
            )
        except BaseException:
            self._held.close()
            raise

    def __repr__(self) -> str:
        return f"<Publisher {self.source} run {self.run!r} at version {self.version}>"

    def close(self) -> None:
        """Let another publisher go on with the run. Idempotent."""
        self._is_closed = True
        self._held.close()

    def start_from(self, named_tensors: NamedTensors) -> None:
        """Take copies of ``named_tensors`` for version 0: what servers were started with.

        For a trainer that begins with the servers' weights and has no checkpoint directory of
        them. Raises: StreamError when there are versions already; TypeError.
        """
        if self.version or self._snapshot is not None:
            raise StreamError(
                f"{self!r} has something to compare with already; start_from is for the beginning"
            )
        self._check_open()
        named_tensors = without_ties(named_tensors, self._known())
        snapshot, _ = copied(named_tensors, self._made(Tally(self._progress)))
        if self._base_dir is not None:
            check_in_base(snapshot, self.source, self._base_dir)
        self._snapshot = snapshot

    def publish(self, named_tensors: NamedTensors) -> Published:
        """Publish ``named_tensors`` as the next version; returns when readers can see it.

        They must not change until then. What is not given stays as it was. Each rank gives the
        tensors that it has; a name of several ranks is written once. A tied tensor is given under
        any of its names that the stream has; those that it lacks may be there too.

        Raises: StreamError, TypeError, OSError: nothing became visible unless ``version`` moved.
        """
        self._check_open()
        tally = Tally(self._progress)
        made = self._made(tally)
        self._settle()
        number, first = self.version + 1, self._is_first
        (snapshot, diff), told = self._compared(named_tensors, made)
        given = given_owners(told)
        if first:
            check_some(given, self.source)
        if not first:
            # What another rank has now is no longer this one's to remember.
            for name in (snapshot.keys() & given.keys()) - diff.checksums.keys():
                del snapshot[name]
        draft = draft_of(self.source, number, self._disk)
        self._pending = _Pending(draft=draft, diff=diff, made=made, snapshot=snapshot)
        full = first or bool(self._anchor_every and number % self._anchor_every == 0)
        with tally.phase("write"):
            if full:
                after = {} if first else diff.blobs
                whole, _ = agreed(
                    self._ranks,
                    lambda: self._whole(told, snapshot, after, made),
                    told=lambda _: {},
                )
                written = write_full(draft, number, whole, self._ranks, side_dir=self._base_dir)
            else:
                mine = [diff.blobs[n] for n in sorted(diff.blobs) if given[n] == self._ranks.rank]
                written = write_delta(draft, number, mine, made, self._ranks)
        tally.through(written=written)
        self._settle()
        self._afterwards(draft.where, told, made)
        published = Published(
            version=number,
            directory=draft.where,
            full=full,
            changed=sum(first or told[rank].changed[name] for name, rank in given.items()),
            written_bytes=tally.written_bytes,
            seconds=dict(tally.seconds),
        )
        _log.info("%s: %s", self.source, published)
        return published

    def _check_open(self) -> None:
        if self._is_closed:
            raise StreamError(
                f"{self!r} is closed, and another publisher may be at work; make a new one, which "
                "goes on where this one ended"
            )

    def _known(self) -> Callable[[], Collection[str]] | None:
        """What has the names of the stream; None where there is nothing yet that has some."""
        if not self.version and self._base_dir is None:
            return None
        return partial(names_at, self.source, self.version, base_dir=self._base_dir)

    @property
    def _is_first(self) -> bool:
        """Whether there is nothing to compare with: the first version is then a full one."""
        return not self.version and self._base_dir is None and self._snapshot is None

    def _opened(self) -> int:
        def here() -> int:
            if self._ranks.rank:
                return 0
            if self._aggregate_every and self._base_dir is not None:
                check_stamps(self.source, self._base_dir)
            return open_run(
                self.source,
                self.run,
                base_dir=self._base_dir,
                disk=self._disk,
                held=self._held,
            )

        return self._from_rank_0(here)

    def _from_rank_0(self, version: Callable[[], int]) -> int:
        _, answers = agreed(self._ranks, version, told=lambda found: {"version": found})
        return int(answers[0]["version"])

    def _made(self, tally: Tally) -> Made:
        return Made(
            encoding=self._encoding,
            checksum_format=self._checksum_format,
            pool=self._pool,
            threads=self._threads,
            tally=tally,
        )

    def _compared(
        self, named: NamedTensors, made: Made
    ) -> tuple[tuple[Snapshot, Diff], list[Told]]:
        def compare() -> tuple[Snapshot, Diff]:
            mine = without_ties(named, self._known())
            snapshot = None if self._is_first else self._remembered(mine, made)
            with made.tally.phase("diff", total_bytes=size_of(mine)):
                if snapshot is None:
                    return copied(mine, made)
                return snapshot, diff_of(mine, snapshot, made)

        def told(found: tuple[Snapshot, Diff]) -> Mapping[str, object]:
            snapshot, diff = found
            return {
                "given": diff.checksums,
                "changed": {name: name in diff.blobs for name in diff.checksums},
                "held": sorted(snapshot.keys() - diff.checksums.keys()),
            }

        found, answers = agreed(self._ranks, compare, told=told)
        return found, [Told(**answer) for answer in answers]

    def _remembered(self, named: NamedTensors, made: Made) -> Snapshot:
        """The snapshot, with what ``named`` has and it lacks read back from the stream."""
        if isinstance(named, Mapping):
            names = set(named)
        else:  # what it has shows only as it is gone through
            known = self._known()
            names = set[str]() if known is None else set(known())
        snapshot = {} if self._snapshot is None else self._snapshot
        missing = names - snapshot.keys()
        if missing:
            with made.tally.phase("restore"):
                snapshot |= self._restored(missing)
        self._snapshot = snapshot
        return snapshot

    def _restored(self, names: set[str]) -> Snapshot:
        return restored(
            self.source, self.version, base_dir=self._base_dir, names=names, pool=self._pool
        )

    def _settle(self) -> None:
        """See whether the version that was being written is there, and remember it if so."""
        pending = self._pending
        if pending is None:
            return
        is_visible = self._from_rank_0(lambda: not self._ranks.rank and pending.draft.is_visible())
        self._pending = None
        if not is_visible:
            return
        # A snapshot that is only half moved is of no use: without one it is read back.
        self._snapshot, self.version = None, pending.draft.version
        advance(pending.snapshot, pending.diff, pending.made)
        self._snapshot = pending.snapshot

    def _whole(
        self, told: Sequence[Told], snapshot: Snapshot, after: Mapping[str, Blob], made: Made
    ) -> Whole:
        """This rank's part of the whole checkpoint: ``snapshot`` with the blobs ``after``."""
        owners = whole_owners(told, self._model_names())
        mine = {name for name, rank in owners.items() if rank == self._ranks.rank}
        missing = mine - snapshot.keys()
        tensors = snapshot | (self._restored(missing) if missing else {})

        def content(tensor: HostTensor) -> Bytes:
            if tensor.name not in after:
                return tensor.content
            new = tensor.content.copy()
            blob = memoryview(after[tensor.name].content)
            apply(made.encoding, blob, new, where=f"tensor {tensor.name!r:.200}")
            return new

        return Whole(tensors=[tensors[name] for name in sorted(mine)], content=content)

    def _model_names(self) -> tuple[str, ...]:
        """Every tensor of the model, given or not, as far as the stream or the base say."""
        if not self.version and self._base_dir is None:
            return ()
        try:
            return names_at(self.source, self.version, base_dir=self._base_dir)
        except VersionMissing:
            # Begun with start_from: what the ranks hold is all that is known.
            return ()

    def _afterwards(self, directory: Path | str, told: Sequence[Told], made: Made) -> None:
        """The aggregate, hooks and old versions: nothing of it makes the version less whole.

        What fails of it does not keep the rest from being done. Raises: what failed.
        """
        try:
            self._write_aggregate(told, made)
        except Exception:
            agreed(self._ranks, lambda: self._last_steps(directory), told=lambda _: {})
            raise
        agreed(self._ranks, lambda: self._last_steps(directory), told=lambda _: {})

    def _last_steps(self, directory: Path | str) -> None:
        if self._ranks.rank:
            return
        try:
            announce(self._post_write, directory, self.version)
        finally:
            if self._keep is not None:
                prune(self.source, keep=self._keep, disk=self._disk)

    def _write_aggregate(self, told: Sequence[Told], made: Made) -> None:
        every, base = self._aggregate_every, self._base_dir
        snapshot = self._snapshot
        if every and base is not None and snapshot is not None and self.version % every == 0:
            with made.tally.phase("aggregate"):
                write_aggregate(
                    self.source,
                    self.version,
                    base_dir=base,
                    tensors=lambda: self._whole(told, snapshot, {}, made).tensors,
                    ranks=self._ranks,
                    made=made,
                    disk=self._disk,
                )
