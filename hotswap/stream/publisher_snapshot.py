"""What was published last, in memory: what the next version is compared with.

After a restart it is read back from the stream, and each tensor's checksum verified, so that
the next version builds on what readers really have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

from hotswap.stream.apply import blame, bytes_of, fold, grouped
from hotswap.stream.base_check import base_blamed
from hotswap.stream.blobs import Delta
from hotswap.stream.errors import (
    DeltaDamaged,
    OutOfOrder,
    SourceNotReady,
    StreamError,
    UnknownEncoding,
    VersionMalformed,
    VersionMissing,
)
from hotswap.stream.parallel import run_all
from hotswap.stream.place import Place
from hotswap.stream.publisher_tensors import HostTensor
from hotswap.stream.source import Source
from hotswap.stream.stored import StoredTensor, StoredTensors, opened_seed

__all__ = ["Snapshot", "any_names", "check_in_base", "names_at", "restored"]

Snapshot: TypeAlias = dict[str, HostTensor]
"""Tensors by name, in memory of their own."""


def any_names() -> tuple[str, ...]:
    """Room for every index that the format allows: a publisher's own stream means no harm."""
    return ("?" * 9_000_000,)


def names_at(source: Place, version: int, *, base_dir: Path | None) -> tuple[str, ...]:
    """Every tensor of the checkpoint that ``version`` leads to. Raises: StreamError."""
    with _advising(source, version), _begun(source, version, base_dir) as (begin, _):
        return tuple(begin.tensors)


def check_in_base(snapshot: Snapshot, source: Place, base_dir: Path) -> None:
    """Raises: StreamError for what readers, who begin with the base, would not have."""
    unknown = sorted(snapshot.keys() - set(names_at(source, 0, base_dir=base_dir)))
    if unknown:
        raise StreamError(
            f"tensor {unknown[0]!r:.200} ({len(unknown)} in all) is not in the base checkpoint "
            f"{base_dir}, which servers are started with; give the base_dir of this model"
        )


def restored(
    source: Place, version: int, *, base_dir: Path | None, names: Collection[str], pool: Executor
) -> Snapshot:
    """The bytes that readers have at ``version``, of the tensors ``names``.

    Raises: StreamError when the chain is broken, damaged, or begins at a base that was not
    given, or a name is not in it.
    """
    with _advising(source, version), _begun(source, version, base_dir) as (begin, deltas):
        unknown = sorted(set(names) - begin.tensors.keys())
        if unknown:
            raise StreamError(
                f"{source}: version {version} has no tensor {unknown[0]!r:.200} "
                f"({len(unknown)} in all); another model is another stream, and a tied tensor has "
                "the name that the stream has"
            )
        versions = deltas()
        by_tensor = grouped(versions)
        found: Snapshot = {}
        tasks = [
            (
                begin.tensors[name].span.length,
                partial(_restore, begin.tensors[name], by_tensor.get(name, []), found),
            )
            for name in names
        ]
        try:
            run_all(pool, tasks)
        except DeltaDamaged as error:
            if base_dir is None or begin.folder.path != base_dir:
                raise
            raise base_blamed(error, begin, versions[0], path=str(base_dir)) from error
    return found


_UNREADABLE = (
    DeltaDamaged,
    OutOfOrder,
    SourceNotReady,
    UnknownEncoding,
    VersionMalformed,
    VersionMissing,
)


@contextmanager
def _advising(source: Place, version: int) -> Iterator[None]:
    """Say how to go on where ``version`` cannot be read back: what readers can see is never
    written over."""
    try:
        yield
    except _NoBase as error:
        raise VersionMissing(str(error)) from error
    except _UNREADABLE as error:
        seen = str(error).removesuffix("; publish the version again")
        raise type(error)(
            f"{seen}; version {version} is there and cannot be read back, so that nothing can be "
            "compared with it. If it is not only late: let hotswap verify name the damaged "
            f"versions, move the first of them and all after it out of {source}, and publish "
            "again. Their numbers are then written anew, and readers that had them make new copies"
        ) from error


class _NoBase(VersionMissing):
    """A stream begins at a base checkpoint that the publisher was not given."""


_Deltas: TypeAlias = Callable[[], "list[dict[str, Delta]]"]


@contextmanager
def _begun(
    source: Place, version: int, base_dir: Path | None
) -> Iterator[tuple[StoredTensors, _Deltas]]:
    """The full checkpoint that ``version`` begins with, and what reads the deltas after it."""
    stream = Source(source, names=any_names(), allowed=None)
    chain = stream.chain(version) if version else None
    if chain is not None and chain.start:
        opened = stream.full(chain.start)
    elif base_dir is not None:
        opened = opened_seed(base_dir, allowed=None, wrong=StreamError)
    else:
        raise _NoBase(
            f"{source}: version {version} builds on the base checkpoint, which was not given; "
            "give base_dir (--base of hotswap publish)"
        )
    with opened:
        yield (
            opened,
            lambda: (
                []
                if chain is None
                else [dict(one) for one in stream.deltas(chain.deltas, opened.lengths)]
            ),
        )


def _restore(stored: StoredTensor, deltas: list[Delta], found: Snapshot) -> None:
    buffer = bytearray(stored.span.length)
    stored.read_into(memoryview(buffer))
    content = bytes_of(buffer)
    if deltas and fold(content, deltas) is None:
        stored.read_into(memoryview(buffer))
        raise blame(content, deltas)
    found[stored.name] = HostTensor(
        name=stored.name, dtype=stored.span.dtype, shape=stored.span.shape, content=content
    )
