"""What every pre-read hook has to do: subclass :class:`PreReadTests` with two fixtures."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import anyio

from hotswap.testing.auditing import watching
from hotswap.testing.cancelling import KINDS, cancelled_at
from hotswap.testing.findings import check, listed, on_one_line
from hotswap.testing.given import WrongFixture, with_method
from hotswap.testing.holdings import Holdings
from hotswap.testing.suites import NeverEnded, Suite

__all__ = ["Hidden", "Hide", "PreRead", "PreReadTests"]

PreRead: TypeAlias = Callable[..., Awaitable[None]]
"""The plug-in's ``hotswap_pre_read``; it may take fewer arguments than the hook has."""

_MOST_AWAITS = 200
_ARGUMENTS = ("source", "version", "options")
_FINALLY = "give it back in a finally of the hook"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """A source that only the hook makes readable, and whether it is by now."""

    source: str
    is_readable: Callable[[], bool]


Hide: TypeAlias = Callable[[], Hidden]
"""Makes a source that is not readable yet, each time another one."""


class PreReadTests(Suite, suite=True):
    """Fixtures: ``pre_read``, the hook, and ``hide``, a :data:`Hide`.

    ``missing_source`` names a source that nobody can make readable. ``options`` are the values
    of options that a hook is called with which takes them.
    """

    missing_source: ClassVar[str] = "/hotswap-conformance/no-such-source"
    options: ClassVar[Mapping[str, object]] = {}

    def test_it_is_written_as_async_def(self, pre_read: PreRead) -> None:
        """With ``source``, ``version`` and ``options``, or fewer: others are refused at load."""
        with_method(pre_read, "__call__", fixture="pre_read")
        check(
            inspect.iscoroutinefunction(pre_read),
            f"{pre_read!r} is not written as 'async def'",
            todo="write it so: hotswap awaits it, and refuses a 'def' at load",
        )
        others = [name for name in inspect.signature(pre_read).parameters if name not in _ARGUMENTS]
        check(
            not others,
            f"it takes {listed(others)}, which the hook does not have",
            todo="take source, version and options, or fewer; options has whatever else it needs",
        )

    def test_the_source_is_readable_afterwards(self, pre_read: PreRead, hide: Hide) -> None:
        """When it returns, and not some time later."""
        hidden = self._hidden(hide)
        self.run(self._call, pre_read, hidden.source)
        self._check_readable(hidden, "once the hook has returned")

    def test_each_source_is_made_readable(self, pre_read: PreRead, hide: Hide) -> None:
        """The one that is asked for, and not one that was asked for before."""
        self.run(self._call, pre_read, self._hidden(hide).source)
        second = self._hidden(hide)
        self.run(self._call, pre_read, second.source)
        self._check_readable(second, "when another source was asked for before")

    def test_two_updates_at_once_do_not_meet(self, pre_read: PreRead, hide: Hide) -> None:
        """Both sources are readable, whichever hook ends first."""
        hidden = [self._hidden(hide), self._hidden(hide)]

        failed = list[tuple[str, Exception]]()

        async def one_of_two(source: str) -> None:
            try:
                await self._call(pre_read, source)
            except Exception as error:
                failed.append((source, error))

        async def both() -> None:
            async with anyio.create_task_group() as tasks:
                for one in hidden:
                    tasks.start_soon(one_of_two, one.source)

        self.run(both)
        for source, error in failed:
            raise AssertionError(
                f"a call for {source!r} failed while another one ran ({on_one_line(error)}); keep "
                "what a call needs in the call, not in what two of them share"
            ) from error
        for one in hidden:
            self._check_readable(one, "when two calls run at the same time")

    def test_it_may_be_called_again(self, pre_read: PreRead, hide: Hide) -> None:
        """An update that was rejected is sent again."""
        hidden = self._hidden(hide)
        self.run(self._call, pre_read, hidden.source)
        try:
            self.run(self._call, pre_read, hidden.source)
        except Exception as error:
            raise AssertionError(
                f"a second call for {hidden.source!r} failed ({on_one_line(error)}); return when "
                "the source is readable already"
            ) from error
        self._check_readable(hidden, "after a second call")

    def test_an_update_need_not_have_a_version(self, pre_read: PreRead, hide: Hide) -> None:
        """None is one, and so is any text."""
        for version in (None, "7", "step 7/é"):
            hidden = self._hidden(hide)
            try:
                self.run(self._call, pre_read, hidden.source, version)
            except Exception as error:
                raise AssertionError(
                    f"version {version!r} made it fail ({on_one_line(error)}); take any text and "
                    "None: a version is the client's label"
                ) from error
            self._check_readable(hidden, f"with version {version!r}")

    def test_a_source_that_is_not_there_is_an_error(self, pre_read: PreRead) -> None:
        """Raising rejects the update; returning lets it go on."""
        try:
            self.run(self._call, pre_read, self.missing_source)
        except NeverEnded as error:
            raise AssertionError(
                f"{self.missing_source!r}, which is not there, is waited for without end: {error}"
            ) from error
        except Exception:
            return
        raise AssertionError(
            f"{self.missing_source!r} is not there, and the hook returned; raise when a source "
            "cannot be made readable"
        )

    def test_it_does_not_block_the_event_loop(self, pre_read: PreRead, hide: Hide) -> None:
        """No file is opened there: requests are served meanwhile."""
        self.run(self._call, pre_read, self._hidden(hide).source)
        source = self._hidden(hide).source

        async def watched() -> list[str]:
            with watching() as watch:
                await self._call(pre_read, source)
            return watch.blocking

        held_up = self.run(watched)
        check(
            not held_up,
            f"the event loop waited for {listed(held_up)}",
            todo="do it on a thread: await anyio.to_thread.run_sync(function, argument)",
        )

    def test_it_gives_every_handle_back(self, pre_read: PreRead, hide: Hide) -> None:
        """Descriptors, mappings, threads, tasks and processes."""
        self.run(self._call, pre_read, self._hidden(hide).source)
        source = self._hidden(hide).source

        async def left() -> Holdings:
            before = Holdings.now()
            await self._call(pre_read, source)
            return await before.released(within_s=self.settle_s)

        held = self.run(left)
        check(not held.items, f"once it has returned this is still held: {held}", todo=_FINALLY)

    def test_a_cancelled_call_ends_and_leaves_nothing(self, pre_read: PreRead, hide: Hide) -> None:
        """Cancelled at every await, by a scope and by its task."""
        self.run(self._call, pre_read, self._hidden(hide).source)

        async def cancel(kind: str, at: int) -> bool:
            source = self._hidden(hide).source
            before = Holdings.now()
            cancelled = await cancelled_at(at, self._call(pre_read, source), kind=kind)
            if cancelled.ended:
                held = await before.released(within_s=self.settle_s)
                check(
                    not held.items,
                    f"cancelled (by its {kind}) at await {at}, in {cancelled.place}, it still "
                    f"holds {held}",
                    todo=f"{_FINALLY}: a cancellation is a BaseException, and no Exception",
                )
            return cancelled.reached

        for kind in KINDS:
            at = 0
            while self.run(cancel, kind, at):
                at += 1
                check(
                    at < _MOST_AWAITS,
                    f"one call gives way more than {_MOST_AWAITS} times",
                    todo="do more between two awaits",
                )

    def test_a_cancellation_is_not_swallowed(self, pre_read: PreRead, hide: Hide) -> None:
        """A time-out and a client that left are cancellations: the hook has to end."""
        self.run(self._call, pre_read, self._hidden(hide).source)

        async def cancel(at: int) -> bool:
            source = self._hidden(hide).source
            cancelled = await cancelled_at(at, self._call(pre_read, source), kind="task")
            check(
                cancelled.ended or not cancelled.reached,
                f"cancelled at its {f'await {at}' if at else 'first await'}, in "
                f"{cancelled.place}, the hook went on to its end",
                todo="let a cancellation pass: catch Exception, or raise it again",
            )
            return cancelled.reached and at < _MOST_AWAITS

        at = 0
        while self.run(cancel, at):
            at += 1

    def test_a_file_that_cannot_be_opened_is_an_error_and_leaves_nothing(
        self, pre_read: PreRead, hide: Hide
    ) -> None:
        """No descriptor is left for any one of the files: it raises, or has done its work."""
        self.run(self._call, pre_read, self._hidden(hide).source)

        async def fail(at: int) -> bool:
            hidden = self._hidden(hide)
            before = Holdings.now()
            raised = False
            with watching(fail_at=at) as watch:
                try:
                    await self._call(pre_read, hidden.source)
                except Exception:
                    raised = True
            if not watch.failed:
                return False
            what = f"opening number {at} ({watch.opened[at]}) failed"
            held = await before.released(within_s=self.settle_s)
            check(not held.items, f"{what}, and this is still held: {held}", todo=_FINALLY)
            check(
                raised or hidden.is_readable(),
                f"{what}, and the hook returned though {hidden.source!r} is not readable",
                todo="let what opening raises pass",
            )
            return True

        at = 0
        while self.run(fail, at):
            at += 1

    # --- how

    def _hidden(self, hide: Hide) -> Hidden:
        """A source that is not readable yet. Raises: WrongFixture."""
        with_method(hide, "__call__", fixture="hide")
        hidden = hide()
        if not isinstance(hidden, Hidden):
            raise WrongFixture(f"hide() returned {hidden!r}, wanted a hotswap.testing.Hidden")
        if hidden.is_readable():
            raise WrongFixture(
                f"hide() made {hidden.source!r}, which is readable already; make another one that "
                "only the hook makes readable"
            )
        return hidden

    def _check_readable(self, hidden: Hidden, when: str) -> None:
        check(
            hidden.is_readable(),
            f"{hidden.source!r} is not readable {when}",
            todo="return once the source that was asked for can be read, and raise if it cannot",
        )

    async def _call(self, pre_read: PreRead, source: str, version: str | None = "1") -> None:
        """As hotswap calls it: with those of the arguments that it takes."""
        arguments = {"source": source, "version": version, "options": self.options}
        taken = inspect.signature(pre_read).parameters
        await pre_read(**{name: arguments[name] for name in taken if name in arguments})
