"""What a server needs to follow a source, made of its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from hotswap.follow.follower import FollowedServer, Follower
from hotswap.follow.options import FollowOptions
from hotswap.follow.strategy import with_follow
from hotswap.plugin_hooks import PreReadHook
from hotswap.pulls import Puller
from hotswap.seams import LoadStrategy
from hotswap.stream.no_source import no_source
from hotswap.stream.objects import Objects
from hotswap.stream.place import Place
from hotswap.stream.recorded import RecordedBase
from hotswap.types import LoadMode

__all__ = ["FollowSetup"]


@dataclass(frozen=True, slots=True)
class FollowSetup:
    """``values`` are those of all options by name, and ``options`` those about following."""

    options: FollowOptions
    values: Mapping[str, object]

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Self | None:
        """None for a server that follows nothing. Makes the directory that is pulled into.

        Raises: ValueError, UpdateRejected for options that cannot be meant, and for a source that
        can be none; OSError.
        """
        options = FollowOptions.from_values(values)
        if options is None:
            return None
        _check(options.source)
        options.local.mkdir(parents=True, exist_ok=True)
        return cls(options, values)

    @property
    def strategy_values(self) -> dict[str, object]:
        """The options that strategies are made of: what is pulled into may be read."""
        roots = self.values.get("local-root")
        if not roots and not self.values.get("weights-root"):
            return dict(self.values)
        assert roots is None or isinstance(roots, tuple)
        return {**self.values, "local-root": (*(roots or ()), str(self.options.local))}

    def strategies(self, known: Mapping[str, LoadStrategy]) -> dict[str, LoadStrategy]:
        """``known``, and the strategy of a follower's commits. Raises: UpdateRejected."""
        return with_follow(known, source=self.options.source)

    def follower(
        self,
        server: FollowedServer,
        *,
        base: RecordedBase | None,
        hooks: Sequence[PreReadHook] = (),
    ) -> Follower:
        """Made once the server has loaded ``base``; enter it to begin.

        It pulls with threads of its own kind, from this source and into this directory, whatever
        the roots of other pulls are: whoever starts the server has named them. Raises:
        ValueError for a hook that cannot be imported.
        """
        source = self.options.source
        roots = (str(source),) if isinstance(source, Objects) else ()
        own = {**self.values, "model": None, "local-root": (), "source-root": roots}
        puller = Puller.from_options(own, hooks=hooks)
        puller.base = base
        mode = LoadMode(str(self.values["load-mode"]))
        return Follower(self.options, puller=puller, server=server, load_mode=mode)


def _check(source: Place) -> None:
    """Raises: SourceUnusable for what is no better however long it is waited for."""
    if isinstance(source, Objects):
        source.check_installed()
    elif (unusable := no_source(source)) is not None:
        raise unusable
