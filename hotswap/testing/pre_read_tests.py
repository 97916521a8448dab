"""What every pre-read hook has to do: subclass :class:`PreReadTests` with two fixtures."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import anyio

from hotswap.testing.auditing import watching
from hotswap.testing.cancelling import KINDS, cancelled_at
from hotswap.testing.holdings import Holdings
from hotswap.testing.suites import Suite

__all__ = ["Hidden", "Hide", "PreRead", "PreReadTests"]

PreRead: TypeAlias = Callable[..., Awaitable[None]]
"""The plug-in's ``hotswap_pre_read``; it may take fewer arguments than the hook has."""

_MOST_AWAITS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """A source that only the hook makes readable, and whether it is by now."""

    source: str
    is_readable: Callable[[], bool]


Hide: TypeAlias = Callable[[], Hidden]
"""Makes a source that is not readable yet, each time another one."""


class PreReadTests(Suite, suite=True):
    """Fixtures: ``pre_read``, the hook, and ``hide``, a :data:`Hide`.

    ``missing_source`` names a source that nobody can make readable, ``options`` are the
    values of the plug-in's options.
    """

    options: ClassVar[Mapping[str, object]] = {}
    missing_source: ClassVar[str] = "/hotswap-conformance/no-such-source"

    def test_it_is_written_as_async_def(self, pre_read: PreRead) -> None:
        """With ``source``, ``version`` and ``options``, or fewer: others are refused at load."""
        assert inspect.iscoroutinefunction(pre_read)
        assert set(inspect.signature(pre_read).parameters) <= {"source", "version", "options"}

    def test_the_source_is_readable_afterwards(self, pre_read: PreRead, hide: Hide) -> None:
        """When it returns, and not some time later."""
        hidden = hide()
        assert not hidden.is_readable(), "hide() has to make a source that is not readable yet"
        self.run(self._call, pre_read, hidden.source)
        assert hidden.is_readable()

    def test_each_source_is_made_readable(self, pre_read: PreRead, hide: Hide) -> None:
        """The one that is asked for, and not one that was asked for before."""
        self.run(self._call, pre_read, hide().source)
        second = hide()
        self.run(self._call, pre_read, second.source)
        assert second.is_readable()

    def test_two_updates_at_once_do_not_meet(self, pre_read: PreRead, hide: Hide) -> None:
        """Both sources are readable, whichever hook ends first."""
        hidden = [hide(), hide()]

        async def both() -> None:
            async with anyio.create_task_group() as tasks:
                for one in hidden:
                    tasks.start_soon(self._call, pre_read, one.source)

        self.run(both)
        assert [one.is_readable() for one in hidden] == [True, True]

    def test_it_may_be_called_again(self, pre_read: PreRead, hide: Hide) -> None:
        """An update that was rejected is sent again."""
        hidden = hide()
        for _ in range(2):
            self.run(self._call, pre_read, hidden.source)
            assert hidden.is_readable()

    def test_an_update_need_not_have_a_version(self, pre_read: PreRead, hide: Hide) -> None:
        """None is one, and so is any text."""
        for version in (None, "7", "step 7/é"):
            hidden = hide()
            self.run(self._call, pre_read, hidden.source, version)
            assert hidden.is_readable(), version

    def test_a_source_that_is_not_there_is_an_error(self, pre_read: PreRead) -> None:
        """Raising rejects the update; returning lets it go on."""
        try:
            self.run(self._call, pre_read, self.missing_source)
        except TimeoutError:
            raise AssertionError(f"{self.missing_source!r} is waited for without end") from None
        except Exception:
            return
        raise AssertionError(f"{self.missing_source!r} was passed")

    def test_it_does_not_block_the_event_loop(self, pre_read: PreRead, hide: Hide) -> None:
        """No file is opened there: requests are served meanwhile."""
        self.run(self._call, pre_read, hide().source)
        source = hide().source

        async def watched() -> list[str]:
            with watching() as watch:
                await self._call(pre_read, source)
            return watch.blocking

        assert self.run(watched) == []

    def test_it_gives_every_handle_back(self, pre_read: PreRead, hide: Hide) -> None:
        """Descriptors, mappings, threads and processes."""
        self.run(self._call, pre_read, hide().source)
        source = hide().source

        async def left() -> Holdings:
            before = Holdings.now()
            await self._call(pre_read, source)
            return await before.released(within_s=self.settle_s)

        assert str(self.run(left)) == "nothing"

    def test_a_cancelled_call_ends_and_leaves_nothing(self, pre_read: PreRead, hide: Hide) -> None:
        """Cancelled at every await, by a scope and by its task."""
        self.run(self._call, pre_read, hide().source)

        async def cancel(kind: str, at: int) -> bool:
            source = hide().source
            before = Holdings.now()
            cancelled = await cancelled_at(at, self._call(pre_read, source), kind=kind)
            if cancelled.ended:
                left = await before.released(within_s=self.settle_s)
                assert not left.items, f"cancelled ({kind}) at await {at}: {left} is held"
            return cancelled.reached

        for kind in KINDS:
            at = 0
            while self.run(cancel, kind, at):
                at += 1
                assert at < _MOST_AWAITS, f"more than {_MOST_AWAITS} awaits"

    def test_a_cancellation_is_not_swallowed(self, pre_read: PreRead, hide: Hide) -> None:
        """A time-out and a client that left are cancellations: the hook has to end."""
        self.run(self._call, pre_read, hide().source)
        source = hide().source

        async def cancel() -> bool:
            cancelled = await cancelled_at(0, self._call(pre_read, source), kind="task")
            return cancelled.ended or not cancelled.reached

        assert self.run(cancel), "a cancelled hook went on to its end"

    def test_a_file_that_cannot_be_opened_is_an_error_and_leaves_nothing(
        self, pre_read: PreRead, hide: Hide
    ) -> None:
        """No descriptor is left for any one of the files: it raises, or has done its work."""
        self.run(self._call, pre_read, hide().source)

        async def fail(at: int) -> bool:
            hidden = hide()
            before = Holdings.now()
            raised = False
            with watching(fail_at=at) as watch:
                try:
                    await self._call(pre_read, hidden.source)
                except Exception:
                    raised = True
            if not watch.failed:
                return False
            left = await before.released(within_s=self.settle_s)
            assert not left.items, f"opening number {at} failed: {left} is held"
            assert raised or hidden.is_readable(), f"opening number {at} failed in silence"
            return True

        at = 0
        while self.run(fail, at):
            at += 1

    # --- how

    async def _call(self, pre_read: PreRead, source: str, version: str | None = "1") -> None:
        """As hotswap calls it: with those of the arguments that it takes."""
        arguments = {"source": source, "version": version, "options": self.options}
        taken = inspect.signature(pre_read).parameters
        await pre_read(**{name: arguments[name] for name in taken if name in arguments})
