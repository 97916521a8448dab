"""Whose stream a source is: one run publishes to it, and another one is refused.

``SOURCE/.publisher/run.json`` says which run; a flock beside it keeps out a second publisher.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import msgspec

from hotswap.errors import UpdateRejected
from hotswap.stream.disk import Disk
from hotswap.stream.errors import LocalBusy, StreamError
from hotswap.stream.layout import published_versions
from hotswap.stream.lock import exclusive
from hotswap.stream.objects import Objects
from hotswap.stream.place import Place
from hotswap.stream.state import Reserved, write_durably
from hotswap.stream.stored import StoredTensors

__all__ = ["HOME", "Run", "open_run"]

HOME = ".publisher"
"""What in a source is the publisher's own."""

FORMAT = 1


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """``name`` of the run, and the digest of its base when it had one."""

    name: str
    format: int = FORMAT
    base_digest: str | None = None


def open_run(
    source: Place, name: str, *, base_dir: Path | None, disk: Disk, held: ExitStack
) -> int:
    """Begin or go on with the run ``name``; the last version that was published, 0 for none.

    Keeps the source for this process until ``held`` is closed; an object store has no locks, and
    there it is the number of each version that only one publisher gets. Raises: StreamError when
    another publisher is at work, or the source is another run's; OSError.
    """
    if isinstance(source, Objects):
        return _open_objects(source, Run(name=name, base_digest=_base_digest(base_dir)))
    home = source / HOME
    disk.make_directory(Reserved(home).home)
    try:
        held.enter_context(exclusive(home, timeout_s=0))
    except LocalBusy as error:
        raise StreamError(
            f"{source}: another publisher is at work there; end it first, or publish elsewhere"
        ) from error
    run = Run(name=name, base_digest=_base_digest(base_dir))
    versions = published_versions(source)
    known = _known(home / "run.json")
    if known is None:
        _check_empty(source, versions)
        write_durably(disk, home / "run.json", msgspec.json.encode(run))
    else:
        _check_same(source, known, run, versions)
    _forget_drafts(source)
    return versions[-1] if versions else 0


def _open_objects(source: Objects, run: Run) -> int:
    place = source / HOME / "run.json"
    versions = published_versions(source)
    text = place.content()
    if text is None:
        _check_empty(source, versions)
        try:
            place.store.put(place.url, msgspec.json.encode(run), new=True)
        except FileExistsError:
            text = place.content()
    if text is not None:
        _check_same(source, _decoded(text, place), run, versions)
    return versions[-1] if versions else 0


def _known(path: Path) -> Run | None:
    try:
        return _decoded(path.read_bytes(), path)
    except FileNotFoundError:
        return None


def _decoded(text: bytes, place: Place) -> Run:
    try:
        return msgspec.json.decode(text, type=Run)
    except ValueError as error:
        raise StreamError(
            f"{place}: cannot be read ({error}); publish to another source"
        ) from error


def _check_empty(source: Place, versions: tuple[int, ...]) -> None:
    if versions:
        raise StreamError(
            f"{source}: holds version {versions[-1]}, and nothing says which run wrote it; "
            "publish to an empty directory"
        )


def _check_same(source: Place, known: Run, run: Run, versions: tuple[int, ...]) -> None:
    if known.format != FORMAT:
        raise StreamError(f"{source}: its run is of format {known.format}, wanted {FORMAT}")
    last = f"up to version {versions[-1]}" if versions else "with no version yet"
    if known.name != run.name:
        raise StreamError(
            f"{source}: is the stream of the run {known.name!r:.80}, {last}; give that name to go "
            f"on with it, or publish the run {run.name!r:.80} elsewhere"
        )
    if None not in (known.base_digest, run.base_digest) and known.base_digest != run.base_digest:
        raise StreamError(
            f"{source}: the run {known.name!r:.80} began on another base checkpoint; give that "
            "one, or publish elsewhere"
        )


def _base_digest(base_dir: Path | None) -> str | None:
    if base_dir is None:
        return None
    try:
        with StoredTensors.at(base_dir) as base:
            return base.digest
    except UpdateRejected as error:
        raise StreamError(f"the base checkpoint cannot be read: {error}") from error


def _forget_drafts(source: Path) -> None:
    """What a publisher that was killed left; it was never visible."""
    import shutil

    for name in os.listdir(source):
        if name.startswith(".weight_v") and name.endswith(".tmp"):
            shutil.rmtree(source / name)
