"""What changed since the snapshot: one blob a tensor, made while the next ones arrive."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field
from typing import Any

from hotswap.stream.checksums import OWN_CHECKSUM, new_hasher
from hotswap.stream.encodings import Encoding, apply, encode, hasher_for
from hotswap.stream.errors import StreamError
from hotswap.stream.parallel import run_all
from hotswap.stream.progress import Tally
from hotswap.stream.publisher_files import Blob
from hotswap.stream.publisher_snapshot import Snapshot
from hotswap.stream.publisher_tensors import HostTensor, NamedTensors, host_tensors, width_of

__all__ = ["Diff", "Made", "advance", "copied", "diff_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """How blobs are made: their encoding and checksum, by how many threads at a time."""

    encoding: Encoding
    checksum_format: str
    pool: Executor
    threads: int
    tally: Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """``blobs`` of what changed, ``checksums`` of all tensors that were given, by name."""

    blobs: dict[str, Blob] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)


def diff_of(named: NamedTensors, snapshot: Snapshot, made: Made) -> Diff:
    """Compare ``named`` with ``snapshot``. Raises: StreamError, TypeError, naming the tensor."""

    def compare(tensor: HostTensor) -> tuple[str, str, bytes | None]:
        old = _same_tensor(tensor, snapshot)
        hasher = hasher_for(made.encoding, made.checksum_format)
        width = width_of(tensor.dtype)
        blob = encode(made.encoding, old.content, tensor.content, width=width, hasher=hasher)
        made.tally.through(done=len(tensor.content))
        return tensor.name, hasher.hexdigest(), blob

    diff = Diff()

    def take(name: str, checksum: str, blob: bytes | None) -> None:
        diff.checksums[name] = checksum
        if blob is not None:
            diff.blobs[name] = Blob(name=name, content=blob, checksum=checksum)

    _each(named, compare, take, made)
    return diff


def copied(named: NamedTensors, made: Made) -> tuple[Snapshot, Diff]:
    """Copies of ``named`` and their checksums: the first version of all. Raises: as ``diff_of``."""
    snapshot: Snapshot = {}
    diff = Diff()

    def copy(tensor: HostTensor) -> tuple[HostTensor, str, None]:
        hasher = new_hasher(OWN_CHECKSUM)
        mine = HostTensor(
            name=tensor.name,
            dtype=tensor.dtype,
            shape=tensor.shape,
            content=tensor.content.copy(),
        )
        hasher.update(mine.content.data)
        made.tally.through(done=len(mine.content))
        return mine, hasher.hexdigest(), None

    def take(tensor: HostTensor, checksum: str, _: None) -> None:
        snapshot[tensor.name] = tensor
        diff.checksums[tensor.name] = checksum

    _each(named, copy, take, made)
    return snapshot, diff


def advance(snapshot: Snapshot, diff: Diff, made: Made) -> None:
    """Bring ``snapshot`` to what ``diff`` says: exactly what readers get."""

    def change(blob: Blob) -> Callable[[], None]:
        content = memoryview(blob.content)
        tensor = snapshot[blob.name].content
        return lambda: apply(made.encoding, content, tensor, where=f"tensor {blob.name!r:.200}")

    run_all(
        made.pool,
        [(len(snapshot[name].content), change(blob)) for name, blob in diff.blobs.items()],
    )


def _each(
    named: NamedTensors,
    work: Callable[[HostTensor], tuple[Any, Any, Any]],
    take: Callable[[Any, Any, Any], None],
    made: Made,
) -> None:
    running = deque[Future[tuple[Any, Any, Any]]]()
    try:
        for tensor in host_tensors(named):
            running.append(made.pool.submit(work, tensor))
            # No more than can be worked on: an iterable may make each tensor as it is asked.
            if len(running) > made.threads:
                take(*running.popleft().result())
        while running:
            take(*running.popleft().result())
    finally:
        for one in running:
            one.cancel()
        wait(running)


def _same_tensor(tensor: HostTensor, snapshot: Snapshot) -> HostTensor:
    old = snapshot.get(tensor.name)
    if old is None:
        raise StreamError(
            f"tensor {tensor.name!r:.200} is not in what was published last; another model is "
            "another stream"
        )
    if (old.dtype, old.shape) != (tensor.dtype, tensor.shape):
        raise StreamError(
            f"tensor {tensor.name!r:.200} is {tensor.dtype} {list(tensor.shape)}, wanted "
            f"{old.dtype} {list(old.shape)} as it was published last"
        )
    return old
