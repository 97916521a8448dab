"""Hooks of a publisher: all of them before a version is announced, or it is not."""

import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from hotswap.errors import UpdateRejected
from hotswap.plugin_hooks import PostWriteHook
from hotswap.post_write import PostWrite, run_post_write, run_post_write_from_thread
from hotswap.stream import SourceNotReady

Seen = list[tuple[str, str, str | None]]


def noting(seen: Seen, name: str, *, error: Exception | None = None) -> PostWriteHook:
    """A hook that notes its call, and then raises ``error`` if there is one."""

    async def call(directory: str, version: str | None) -> None:
        await anyio.lowlevel.checkpoint()
        seen.append((name, directory, version))
        if error is not None:
            raise error

    return PostWriteHook(name=name, call=call)


async def test_hooks_run_in_turn_with_directory_and_version() -> None:
    seen: Seen = []
    await run_post_write([noting(seen, "b"), noting(seen, "a")], Path("/weights/8"), "8")
    assert seen == [("b", "/weights/8", "8"), ("a", "/weights/8", "8")]


async def test_the_first_that_fails_is_the_last_that_is_called() -> None:
    seen: Seen = []
    failing = noting(seen, "hotswap-nfs", error=OSError("stale handle"))
    with pytest.raises(UpdateRejected) as caught:
        await run_post_write([noting(seen, "a"), failing, noting(seen, "z")], "/w", "7")
    assert [name for name, _, _ in seen] == ["a", "hotswap-nfs"]
    assert str(caught.value) == (
        "hotswap-nfs: post-write hook failed: OSError: stale handle; /w (version '7') is written "
        "and was not announced: put it right, and run the hooks again or publish the next version"
    )


async def test_a_rejection_without_a_name_gets_that_of_its_hook() -> None:
    failing = noting([], "hotswap-nfs", error=UpdateRejected("not visible on node 3"))
    with pytest.raises(UpdateRejected, match=r"^hotswap-nfs: post-write hook: not visible on"):
        await run_post_write([failing], "/w", None)


async def test_an_error_that_says_more_passes_as_it_is() -> None:
    failing = noting([], "hotswap-nfs", error=SourceNotReady("not yet"))
    with pytest.raises(SourceNotReady, match=r"^not yet$"):
        await run_post_write([failing], "/w", "7")


async def test_a_hook_that_hangs_is_ended_and_named() -> None:
    ended = anyio.Event()

    async def call(directory: str, version: str | None) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    hook = PostWriteHook(name="hotswap-nfs", call=call, timeout_s=0.01)
    with pytest.raises(
        UpdateRejected, match=r"hotswap-nfs: .* longer than 0.01 s; .*not announced"
    ):
        await run_post_write([hook], "/w", "7")
    assert ended.is_set()


async def test_each_hook_has_a_time_limit_of_its_own() -> None:
    """Two that take longer together than one may."""
    limit_s, seen = 30.0, []

    async def call(directory: str, version: str | None) -> None:
        seen.append(anyio.current_effective_deadline() - anyio.current_time())

    await run_post_write(
        [PostWriteHook(name=n, call=call, timeout_s=limit_s) for n in "ab"], "/w", None
    )
    assert len(seen) == 2
    assert all(0 < left <= limit_s for left in seen)


async def test_a_plain_function_is_named_and_limited_like_a_hook() -> None:
    left_s: list[float] = []

    async def show(directory: str, version: str | None) -> None:
        left_s.append(anyio.current_effective_deadline() - anyio.current_time())
        raise OSError("no such host")

    with pytest.raises(UpdateRejected, match=r"show: post-write hook failed: OSError: no such"):
        await run_post_write([show], "/w", "7")
    assert left_s[0] <= 60.0


async def test_a_cancelled_publisher_cancels_the_hook_and_is_no_rejection() -> None:
    async def call(directory: str, version: str | None) -> None:
        scope.cancel()
        await anyio.sleep_forever()

    with anyio.CancelScope() as scope:
        await run_post_write([call], "/w", "7")
    assert scope.cancelled_caught


def test_a_thread_without_an_event_loop_may_run_them() -> None:
    seen: Seen = []
    threads: list[int] = []

    async def where(directory: str, version: str | None) -> None:
        threads.append(threading.get_ident())

    for version in ("7", "8"):
        run_post_write_from_thread([noting(seen, "a"), where], "/w", version)
    assert seen == [("a", "/w", "7"), ("a", "/w", "8")]
    assert threads == [threading.get_ident()] * 2


def test_what_a_hook_raises_reaches_the_thread() -> None:
    failing = noting([], "hotswap-nfs", error=OSError("stale handle"))
    with pytest.raises(UpdateRejected, match=r"hotswap-nfs: .* stale handle; /w"):
        run_post_write_from_thread([failing], "/w", "7")


@pytest.mark.parametrize("hooks", [[], [noting([], "a")]])
async def test_an_event_loop_is_not_held_up(hooks: list[PostWrite]) -> None:
    with pytest.raises(RuntimeError, match="await run_post_write there"):
        run_post_write_from_thread(hooks, "/w", "7")


async def test_a_worker_thread_of_an_event_loop_may_run_them() -> None:
    """A publisher's blocking half, called from async code."""
    seen: Seen = []
    publish: Callable[[], None] = lambda: run_post_write_from_thread(  # noqa: E731
        [noting(seen, "a")], "/w", "7"
    )
    await anyio.to_thread.run_sync(publish)
    assert seen == [("a", "/w", "7")]


def test_nothing_runs_for_no_hooks() -> None:
    run_post_write_from_thread([], "/w", "7")
