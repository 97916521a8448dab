"""What is published at a source, seen again and again without looking at everything each time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from hotswap.stream.errors import SourceNotReady
from hotswap.stream.layout import published_versions
from hotswap.stream.no_source import no_source
from hotswap.stream.objects import Objects
from hotswap.stream.place import Place
from hotswap.stream.survey import VersionSurvey, survey_version

__all__ = ["Behind", "Seen", "SourceWatch"]

_MOST = 256
"""So many of the newest versions are looked into; of more nobody asks how large they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """How far something is behind: versions, bytes of them, seconds since the first was seen."""

    versions: int = 0
    size_bytes: int = 0
    since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One look. ``whole``: versions that read whole, ascending, and their bytes; ``troubles``:
    why others do not (yet); ``first_seen``: when each was, by the watch's clock."""

    whole: Mapping[int, int] = field(default_factory=dict)
    troubles: Mapping[int, str] = field(default_factory=dict)
    listed: frozenset[int] = frozenset()
    first_seen: Mapping[int, float] = field(default_factory=dict)

    @property
    def newest(self) -> int | None:
        """The newest version that reads whole."""
        return max(self.whole, default=None)

    def behind(self, version: int) -> Behind:
        """How far ``version`` is behind the newest."""
        newer = [number for number in self.whole if number > version]
        return Behind(
            versions=len(newer),
            size_bytes=sum(self.whole[number] for number in newer),
            since=min((self.first_seen[number] for number in newer), default=None),
        )


class SourceWatch:
    """Looks at ``source``. One look at a time; any thread.

    A version that was whole is not looked into again: a pull finds out what it is.
    """

    def __init__(self, source: Place, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._known: dict[int, VersionSurvey] = {}
        self._first_seen: dict[int, float] = {}

    def __repr__(self) -> str:
        return f"<SourceWatch {self._source}>"

    def look(self, *, above: int = 0, told: Collection[int] = ()) -> Seen:
        """What there is. Blocks. Versions ``above`` one's own are looked into, and a whole one.

        ``told`` are versions that somebody has said to be there, which a listing may lack yet.
        Raises: SourceNotReady when the source cannot be listed, SourceUnusable for what can be
        none.
        """
        listed = self._listed()
        surveys = self._surveys(sorted(listed | set(told), reverse=True), above)
        whole = {one.version: one.size_bytes for one in surveys if one.trouble is None}
        listed |= whole.keys()
        self._known = {one.version: one for one in surveys if one.trouble is None}
        now = self._clock()
        self._first_seen = {number: self._first_seen.get(number, now) for number in whole}
        return Seen(
            whole=whole,
            troubles={o.version: o.trouble for o in surveys if o.trouble and o.version in listed},
            listed=frozenset(listed),
            first_seen=self._first_seen,
        )

    def _listed(self) -> set[int]:
        try:
            found = published_versions(self._source)
        except SourceNotReady as error:
            if isinstance(self._source, Objects):
                # It was asked as often as is worth the while.
                raise
            raise no_source(self._source) or error from error.__cause__
        if not found and (unusable := no_source(self._source)) is not None:
            raise unusable
        return set(found)

    def _surveys(self, newest_first: Sequence[int], above: int) -> list[VersionSurvey]:
        """Ascending, down to ``above`` or the first below it that is whole."""
        found = list[VersionSurvey]()
        for number in newest_first[:_MOST]:
            if number <= above and any(one.trouble is None for one in found):
                break
            found.append(self._survey(number))
        return found[::-1]

    def _survey(self, number: int) -> VersionSurvey:
        return self._known.get(number) or survey_version(self._source, number)
