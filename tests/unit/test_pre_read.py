"""The operator's hook by its import path, and the hooks of a pull in their order."""

from __future__ import annotations

import asyncio
import functools
import re
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import anyio.from_thread
import pytest

from hotswap.errors import UpdateRejected
from hotswap.plugin_hooks import PreReadHook, with_options
from hotswap.pre_read import operator_hook, pull_pre_read
from hotswap.testing.endings import ENDINGS
from hotswap.testing.rig import make_rig, update_from
from hotswap.uninterrupted import on_worker_thread

MODULE = "operators_module_under_test"


class Refresh:
    """A callable object, as a client of a mount may be one."""

    def __init__(self, seen: list[object]) -> None:
        self.seen = seen

    async def __call__(self, source_dir: str, target_version: int) -> None:
        await anyio.lowlevel.checkpoint()
        self.seen.append(("object", source_dir, target_version))


@pytest.fixture
def module() -> Iterator[Any]:
    """The operator's module, which is importable."""
    made: Any = ModuleType(MODULE)
    made.seen = []

    def plain(source_dir: str, target_version: int) -> None:
        made.seen.append((threading.current_thread().name, source_dir, target_version))

    async def slow(source_dir: str, target_version: int) -> None:
        await anyio.lowlevel.checkpoint()
        made.seen.append(("async", source_dir, target_version))

    made.plain, made.slow, made.refresh = plain, slow, Refresh(made.seen)
    made.bound = functools.partial(slow)
    made.number, made.one = 7, lambda source_dir: None

    async def many(source_dir: str, target_version: int) -> AsyncIterator[int]:
        yield target_version

    def several(source_dir: str, target_version: int) -> Iterator[int]:
        yield target_version

    class Many:
        async def __call__(self, source_dir: str, target_version: int) -> AsyncIterator[int]:
            yield target_version

    made.many, made.several, made.object = many, several, Many()
    made.part = functools.partial(many)
    made.more = lambda source_dir, target_version, *, how: None
    sys.modules[MODULE] = made
    yield made
    del sys.modules[MODULE]


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("plain", "hotswap-pre-read"),
        ("slow", "async"),
        ("refresh", "object"),
        ("bound", "async"),
    ],
)
def test_plain_or_async_it_gets_source_and_target(module: Any, name: str, seen: str) -> None:
    pre_read = pull_pre_read([operator_hook(f"{MODULE}.{name}")])
    assert pre_read is not None
    pre_read(Path("/shared/stream"), 7)
    assert module.seen == [(seen, "/shared/stream", 7)]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "is no import path, wanted package.module.function"),
        ("refresh", "is no import path"),
        ("a..b", "is no import path"),
        ("a.b:c", "is no import path"),
        ("../x.py", "is no import path"),
        ("no_such_package.refresh", "cannot be imported (ModuleNotFoundError: "),
        (f"{MODULE}.absent", f"module {MODULE} has no absent"),
        (f"{MODULE}.number", "is a int, wanted a function"),
        (f"{MODULE}.one", "takes (source_dir), wanted (source_dir, target_version)"),
        (f"{MODULE}.more", "wanted (source_dir, target_version)"),
        (f"{MODULE}.many", "yields, and nothing of it would run"),
        (f"{MODULE}.several", "yields, and nothing of it would run"),
        (f"{MODULE}.object", "yields, and nothing of it would run"),
        (f"{MODULE}.part", "yields, and nothing of it would run"),
    ],
)
def test_one_that_cannot_be_imported_or_called_is_refused_in_a_line(
    module: Any, path: str, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        operator_hook(path)
    assert str(caught.value).startswith("custom-pull-weights-pre-read-hook: ")
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise RuntimeError('no\\nmount')", "RuntimeError: no mount"),
        ("raise AttributeError('x')", "AttributeError: x"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_module_that_fails_at_import_is_refused(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_operators_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=re.escape(f"cannot be imported ({said})")):
        operator_hook("broken_operators_module.refresh")


def test_one_whose_signature_nobody_knows_is_tried(module: Any) -> None:
    module.written_in_c = min
    assert operator_hook(f"{MODULE}.written_in_c").name == f"{MODULE}.written_in_c"


def test_the_operators_comes_first_and_the_first_that_fails_ends_it(module: Any) -> None:
    def hook(name: str, error: Exception | None = None) -> PreReadHook:
        async def call(source: str, version: str | None) -> None:
            module.seen.append((name, source, version))
            if error is not None:
                raise error

        return PreReadHook(name=name, call=call)

    own = operator_hook(f"{MODULE}.slow")
    pre_read = pull_pre_read([own, hook("hotswap-a"), hook("hotswap-b", OSError("no mount"))])
    assert pre_read is not None
    with pytest.raises(UpdateRejected, match="hotswap-b: pre-read hook failed: OSError: no mount"):
        pre_read(Path("/s"), 7)
    assert module.seen == [("async", "/s", 7), ("hotswap-a", "/s", "7"), ("hotswap-b", "/s", "7")]
    assert pull_pre_read([]) is None


async def test_on_the_loop_that_started_the_pulls_thread() -> None:
    threads = list[int]()

    async def call(source: str, version: str | None) -> None:
        threads.append(threading.get_ident())

    hooks = [PreReadHook(name="x", call=call)]
    pre_read = pull_pre_read(hooks, run=anyio.from_thread.run)
    assert pre_read is not None
    await on_worker_thread(pre_read, Path("/s"), 7)
    assert threads == [threading.get_ident()]


@pytest.mark.parametrize("is_async", [True, False])
def test_one_that_does_not_end_is_left_behind(module: Any, is_async: bool) -> None:
    over = threading.Event()

    async def waits(source_dir: str, target_version: int) -> None:
        await anyio.sleep_forever()

    def blocks(source_dir: str, target_version: int) -> None:
        over.wait()

    module.hook = waits if is_async else blocks
    found = operator_hook(f"{MODULE}.hook")
    assert found.timeout_s == 60.0
    pre_read = pull_pre_read([PreReadHook(name=found.name, call=found.call, timeout_s=0.05)])
    assert pre_read is not None
    try:
        with pytest.raises(UpdateRejected, match=r"hook took longer than 0.05 s"):
            pre_read(Path("/s"), 7)
    finally:
        over.set()


async def test_options_reach_the_hooks_of_plug_ins_alone() -> None:
    seen = list[object]()

    async def with_three(*given: object) -> None:
        seen.append(given)

    of_a_plugin = PreReadHook(name="a", call=with_three, options={"wait-s": 1.0})
    plain = PreReadHook(name="b", call=with_three)
    for hook in with_options([of_a_plugin, plain], {"wait-s": 2.0}):
        await hook("/s", None)
    assert seen == [("/s", None, {"wait-s": 2.0}), ("/s", None)]


async def _child_ends(ending: BaseException) -> None:
    async def child() -> None:
        raise ending

    await asyncio.get_running_loop().create_task(child())


async def _cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda: _child_ends(GeneratorExit("closed")), "GeneratorExit"),
        (lambda: _child_ends(asyncio.CancelledError("mine")), "CancelledError"),
        (lambda: _child_ends(ENDINGS["StopEverything"]()), "StopEverything: enough"),
        (_cancels_itself, "it cancelled the task that it runs in"),
    ],
    ids=["closed", "cancelled child", "own exception", "itself"],
)
async def test_a_hook_whose_tasks_end_oddly_rejects_the_update(
    act: Callable[[], Awaitable[None]], says: str
) -> None:
    async def call(source: str, version: str | None) -> None:
        await act()

    rig = make_rig(pre_read=[PreReadHook(name="toy", call=call)])
    async with rig.controller as controller:
        with pytest.raises(UpdateRejected, match=f"toy: pre-read hook failed: .*{says}"):
            await controller.update(update_from("B"))
        assert controller.counters.updates["fake", "rejected"] == 1
        assert rig.engine.values() == {0.0}


@pytest.mark.parametrize("way", ["scope", "task"])
async def test_who_waits_for_a_hook_may_still_be_cancelled(way: str) -> None:
    """The hook is too, and has ended, with all that it does in the end, when its caller goes."""
    begun, seen = anyio.Event(), list[str]()

    async def call(source: str, version: str | None) -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
                seen.append("given back")

    hook = PreReadHook(name="toy", call=call)
    with anyio.CancelScope() as scope:
        task = asyncio.get_running_loop().create_task(hook("/s", None))
        await begun.wait()
        if way == "task":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            scope.cancel()
            await task
    assert task.cancelled()
    assert scope.cancelled_caught is (way == "scope")
    assert seen == ["given back"]


async def test_a_hook_that_takes_too_long_is_rejected_once_it_has_ended() -> None:
    seen = list[str]()

    async def call(source: str, version: str | None) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            seen.append("ended")

    with pytest.raises(UpdateRejected, match="took longer than 0 s"):
        await PreReadHook(name="toy", call=call, timeout_s=0)("/s", None)
    assert seen == ["ended"]
