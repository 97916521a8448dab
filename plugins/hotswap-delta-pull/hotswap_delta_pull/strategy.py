"""The load strategy ``delta-pull``.

Rule: the pull and the reading are hotswap's; here it is only decided which version of
which source is meant, and where its copy lies.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

from hotswap_disk import DiskStrategy

from hotswap.errors import UpdateRejected
from hotswap.object_url import is_url
from hotswap.pulls import Puller
from hotswap.pulls.copy_name import copy_name
from hotswap.seams import Stage
from hotswap.stream import directory_of
from hotswap.stream.layout import is_number
from hotswap.stream.place import Place, place_of
from hotswap.types import Placement, Update
from hotswap.uninterrupted import on_worker_thread
from hotswap.weights.roots import Roots, roots_of

__all__ = ["DeltaPullStrategy", "wanted_version"]

_PULLS = 3


class DeltaPullStrategy:
    """Pulls what an update asks for into a directory of ``roots``, and reads that.

    Each source has a directory of its own in the first root. Without a root every update
    is rejected.
    """

    def __init__(self, puller: Puller, *, roots: Roots | None) -> None:
        self.puller: Puller = puller
        self._roots = roots
        self._disk = DiskStrategy(allowed=roots, pulls_first=True)

    @classmethod
    def from_options(cls, values: Mapping[str, object]) -> Self:
        """Make it from ``local-root``, ``source-root``, ``pull-threads`` and ``model``.

        Raises: ValueError for a root that is no directory.
        """
        return cls(Puller.from_options(values), roots=roots_of(values, "local-root"))

    def __repr__(self) -> str:
        return f"<DeltaPullStrategy into {self._roots or 'no directory'}>"

    @asynccontextmanager
    async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
        """Pull, and open the copy for as long as the context lasts; every rank reads all of it.

        Ranks of one host read one copy, which the first of them pulls. Raises:
        UpdateRejected: a StreamError when the pull failed, or what the disk strategy raises.
        """
        source, target = wanted_version(update)
        local = await on_worker_thread(self._directory, source)
        copy = replace(update, source=str(local))
        for pulled in range(_PULLS + 1):
            if pulled:
                await self.puller.pull(str(local), str(source), target)
            async with AsyncExitStack() as held:
                stage = await self._reached(held, copy, placement, source, target, pulled > 0)
                if stage is not None:
                    yield stage
                    return
        raise UpdateRejected(
            f"{local} was pulled to other versions {_PULLS} times before version {target} could "
            "be read; let one trainer at a time ask for versions of this source"
        )

    async def _reached(
        self,
        held: AsyncExitStack,
        copy: Update,
        placement: Placement,
        source: Place,
        target: int,
        pulled: bool,
    ) -> Stage | None:
        """The copy, open and kept from pulls in ``held``; None when it is not at ``target``."""
        holds = partial(self.puller.holds, Path(copy.source), source, target)
        if not await on_worker_thread(partial(holds, looks=False)):
            return None
        try:
            stage = await held.enter_async_context(self._disk.open(copy, placement))
        except UpdateRejected:
            if pulled:
                raise
            return None  # the next pull sees what is wrong with the copy, and makes it anew
        # What is read now nobody pulls away: is it still what was asked for?
        there = await on_worker_thread(partial(holds, looks=True, hooks=not pulled))
        return stage if there else None

    def _directory(self, source: Place) -> Path:
        if self._roots is None:
            raise UpdateRejected(
                "the strategy delta-pull has no place for its copy: start the server with "
                "--local-root DIR, a directory on a local disk with room for a checkpoint"
            )
        return self._roots.paths[0] / copy_name(source)


def wanted_version(update: Update) -> tuple[Place, int]:
    """The source and the version in it that ``update`` asks for.

    Its source is the directory or URL of a version, or of versions; then ``version`` says
    which. Raises: UpdateRejected when neither names one.
    """
    if not update.source or "\0" in update.source:
        raise UpdateRejected(f"{update.source!r:.80} is no directory, wanted one of versions")
    path: Place = Path(os.path.normpath(update.source))
    if is_url(update.source):
        path = place_of(update.source)
    number = path.name.removeprefix("weight_v")
    if is_number(number) and directory_of(path.parent, int(number)) == path:
        return path.parent, int(number)
    if update.version is not None and is_number(update.version):
        return path, int(update.version)
    raise UpdateRejected(
        f"{str(path)!r:.200} is no directory of one version, such as "
        f"{directory_of(path, 7)}, and weight_version is {update.version!r:.80}, wanted the "
        "number of a version; send one or the other"
    )
