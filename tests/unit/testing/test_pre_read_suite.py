"""The suite of pre-read hooks passes a correct one, and finds each fault by its name.

The hook here waits for a marker that a shared filesystem shows late: it renames
``source.hidden`` to ``source``.
"""

import asyncio
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from hotswap.testing import Hidden, Hide, PreRead, PreReadTests, run_suite
from tests.unit.testing.planting import explained

_NUMBERS = itertools.count()


def hider(folder: Path) -> Hide:
    def hide() -> Hidden:
        source = folder / f"source-{next(_NUMBERS)}"
        source.with_suffix(".hidden").write_text("weights")
        return Hidden(source=str(source), is_readable=source.exists)

    return hide


def show(source: str) -> None:
    path = Path(source)
    if not path.exists():
        with path.with_suffix(".hidden").open():
            path.with_suffix(".hidden").rename(path)


async def on_thread(work: Callable[[str], object], source: str) -> None:
    await anyio.to_thread.run_sync(work, source)


async def hotswap_pre_read(source: str, version: str | None) -> None:
    await on_thread(show, source)


class TestRename(PreReadTests):
    @pytest.fixture
    def pre_read(self) -> PreRead:
        return hotswap_pre_read

    @pytest.fixture
    def hide(self, tmp_path: Path) -> Hide:
        return hider(tmp_path)


class Small(PreReadTests):
    settle_s = 0.2


def extra_argument() -> PreRead:
    async def pre_read(source: str, attempts: int = 3) -> None:
        await on_thread(show, source)

    return pre_read


def by_version() -> PreRead:
    shown: dict[str | None, str] = {}

    async def pre_read(source: str, version: str | None) -> None:
        # Asked before anything is awaited, so that two calls at once do not see each other.
        wanted = shown.get(version, source)
        await on_thread(os.listdir, str(Path(source).parent))
        await on_thread(show, wanted)
        shown.setdefault(version, source)

    return pre_read


def the_newest() -> PreRead:
    newest, one_shows = [""], threading.Lock()

    def work(source: str) -> None:
        with one_shows:
            show(source)

    async def pre_read(source: str) -> None:
        newest[:] = [source]
        await anyio.lowlevel.checkpoint()
        await on_thread(work, newest[0])

    return pre_read


def one_at_a_time() -> PreRead:
    running: list[str] = []

    async def pre_read(source: str) -> None:
        if running:
            raise RuntimeError(f"{running[0]} is being made readable")
        running.append(source)
        try:
            await anyio.lowlevel.checkpoint()
            await on_thread(show, source)
        finally:
            running.clear()

    return pre_read


def once() -> PreRead:
    async def pre_read(source: str) -> None:
        def work(path: str) -> None:
            with open(path + ".hidden"):
                os.rename(path + ".hidden", path)

        await on_thread(work, source)

    return pre_read


def with_version() -> PreRead:
    async def pre_read(source: str, version: str) -> None:
        int(version)
        await on_thread(show, source)

    return pre_read


def forgiving() -> PreRead:
    def work(source: str) -> None:
        if Path(source).with_suffix(".hidden").exists():
            show(source)

    async def pre_read(source: str) -> None:
        await on_thread(work, source)

    return pre_read


def blocking() -> PreRead:
    async def pre_read(source: str) -> None:
        await anyio.lowlevel.checkpoint()
        show(source)

    return pre_read


def leaking(*, when: str) -> Callable[[], PreRead]:
    """A hook that keeps a descriptor of its own when it ends in one way."""

    def make() -> PreRead:
        async def pre_read(source: str) -> None:
            reading, writing = os.pipe()
            end = "well"
            try:
                await on_thread(show, source)
            except Exception:
                end = "failed"
                raise
            except BaseException:
                end = "cancelled"
                raise
            finally:
                os.close(writing)
                if end != when:
                    os.close(reading)

        return pre_read

    return make


def thread_behind() -> PreRead:
    async def pre_read(source: str) -> None:
        await on_thread(show, source)
        threading.Thread(target=threading.Event().wait, args=(1.0,), name="behind").start()

    return pre_read


def swallowing() -> PreRead:
    async def pre_read(source: str) -> None:
        try:
            await on_thread(show, source)
        except BaseException as error:
            if isinstance(error, Exception):
                raise

    return pre_read


def swallowing_later() -> PreRead:
    async def pre_read(source: str) -> None:
        await on_thread(os.listdir, str(Path(source).parent))
        await swallowing()(source)

    return pre_read


def task_behind() -> PreRead:
    left: list[asyncio.Task[None]] = []

    async def pre_read(source: str) -> None:
        await on_thread(show, source)
        left.append(asyncio.get_running_loop().create_task(asyncio.sleep(3600.0)))

    return pre_read


def silent() -> PreRead:
    def work(source: str) -> None:
        try:
            show(source)
        except FileNotFoundError:
            raise
        except OSError:
            return

    async def pre_read(source: str) -> None:
        await on_thread(work, source)

    return pre_read


BROKEN: dict[str, tuple[Callable[[], PreRead], str, str]] = {
    "it takes what the hook does not have": (
        extra_argument,
        "test_it_is_written_as_async_def",
        "it takes attempts, which the hook does not have",
    ),
    "sources are remembered by their version": (
        by_version,
        "test_each_source_is_made_readable",
        r"source-\d+' is not readable when another source was asked for before",
    ),
    "two calls share one source": (
        the_newest,
        "test_two_updates_at_once_do_not_meet",
        r"source-\d+' is not readable when two calls",
    ),
    "one call fails beside another": (
        one_at_a_time,
        "test_two_updates_at_once_do_not_meet",
        r"source-\d+' failed while another one ran \(RuntimeError",
    ),
    "a second call fails": (
        once,
        "test_it_may_be_called_again",
        r"a second call for '.*source-\d+' failed \(FileNotFoundError",
    ),
    "a version is wanted": (
        with_version,
        "test_an_update_need_not_have_a_version",
        r"version None made it fail \(TypeError",
    ),
    "what is not there passes": (
        forgiving,
        "test_a_source_that_is_not_there_is_an_error",
        "'/hotswap-conformance/no-such-source' is not there, and the hook returned",
    ),
    "a file is opened on the event loop": (
        blocking,
        "test_it_does_not_block_the_event_loop",
        r"the event loop waited for open .*\.hidden",
    ),
    "a descriptor is kept": (
        leaking(when="well"),
        "test_it_gives_every_handle_back",
        r"still held: descriptor \d+ \(pipe:",
    ),
    "a thread is kept": (
        thread_behind,
        "test_it_gives_every_handle_back",
        "still held: thread behind",
    ),
    "a descriptor is kept by a cancelled call": (
        leaking(when="cancelled"),
        "test_a_cancelled_call_ends_and_leaves_nothing",
        r"at await 0, in on_thread \(test_pre_read_suite\.py:\d+\), it still holds descriptor",
    ),
    "a cancellation is swallowed": (
        swallowing,
        "test_a_cancellation_is_not_swallowed",
        r"first await, in on_thread \(test_pre_read_suite\.py:\d+\), the hook went on",
    ),
    "a later cancellation is swallowed": (
        swallowing_later,
        "test_a_cancellation_is_not_swallowed",
        r"cancelled at its await \d+, in on_thread \(test_pre_read_suite\.py:\d+\), the hook went",
    ),
    "a task is kept": (
        task_behind,
        "test_it_gives_every_handle_back",
        r"still held: task Task-\d+ \(sleep\)",
    ),
    "a descriptor is kept after a failure": (
        leaking(when="failed"),
        "test_a_file_that_cannot_be_opened_is_an_error_and_leaves_nothing",
        r"opening number 0 \(open '.*\.hidden'\) failed, and this is still held: descriptor",
    ),
    "a file that does not open is passed over": (
        silent,
        "test_a_file_that_cannot_be_opened_is_an_error_and_leaves_nothing",
        r"opening number 0 .* failed, and the hook returned though",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_hook_fails_the_test_that_names_its_fault(what: str, tmp_path: Path) -> None:
    make, test, says = BROKEN[what]
    outcomes = run_suite(Small, {"pre_read": make, "hide": lambda: hider(tmp_path)})
    failed = [name for name, error in outcomes.items() if error is not None]
    assert failed == [test]
    explained(outcomes[test], says)


def test_a_hook_that_returns_too_early_is_found(tmp_path: Path) -> None:
    """It fails whatever looks at the source, and the test of its name before all."""

    async def pre_read(source: str) -> None:
        await on_thread(os.stat, source + ".hidden")

    outcomes = run_suite(Small, {"pre_read": lambda: pre_read, "hide": lambda: hider(tmp_path)})
    failed = outcomes["test_the_source_is_readable_afterwards"]
    explained(failed, r"source-\d+' is not readable once the hook has returned")
    assert outcomes["test_it_gives_every_handle_back"] is None


def test_every_test_of_the_suite_has_a_broken_hook() -> None:
    named = {test for _, test, _ in BROKEN.values()}
    assert named | {"test_the_source_is_readable_afterwards"} == set(PreReadTests.tests)
