"""What runs before a pull looks at its source: the operator's own hook, then the plug-ins'.

Rule: the operator's code is named on the command line or in the environment, never in a
request, and is imported once, at the start. It comes first, because a hook of a plug-in
may look at the source itself, and the operator's is what refreshes the view of it.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

import anyio

from hotswap.foreign import on_a_thread, said
from hotswap.plugin_hooks import PreReadHook
from hotswap.stream.look import PreRead

__all__ = ["OPERATOR_VARIABLE", "Operator", "operator_hook", "pull_pre_read"]

_OPTION = "custom-pull-weights-pre-read-hook"

OPERATOR_VARIABLE = "HOTSWAP_CUSTOM_PULL_WEIGHTS_PRE_READ_HOOK"
"""Names the operator's hook where no flag does."""

Operator: TypeAlias = Callable[[str, int], object]
"""``(source_dir, target_version)``; what is awaitable is awaited."""


def operator_hook(path: str) -> PreReadHook:
    """The hook at the import path ``package.module.function``, plain or async.

    A plain one runs on a thread of its own, which nobody waits for past the time-out.
    Raises: ValueError, in one line that begins with the option's name, for what cannot be
    imported or called so.
    """
    try:
        found = _imported(path)
        _check_arguments(path, found)
    except ValueError as error:
        raise ValueError(f"{_OPTION}: {error}") from error
    return PreReadHook(name=path, call=partial(_call, found))


def _imported(path: str) -> Operator:
    module, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in path.split(".")) or not module:
        raise ValueError(f"{path!r} is no import path, wanted package.module.function")
    try:
        there = import_module(module)
    except BaseException as error:
        raise ValueError(f"{path} cannot be imported ({said(error)})") from error
    if not hasattr(there, name):
        raise ValueError(f"{path} is not there: module {module} has no {name}")
    found: object = getattr(there, name)
    if not callable(found):
        raise ValueError(f"{path} is a {type(found).__name__}, wanted a function")
    return found


def pull_pre_read(
    hooks: Sequence[PreReadHook], *, run: Callable[..., None] = anyio.run
) -> PreRead | None:
    """What ``hotswap.stream.pull`` is given; None without hooks.

    ``run`` carries out an async function on an event loop while the pull's thread waits: a
    new one, or with ``anyio.from_thread.run`` the one that started the thread.
    """
    if not hooks:
        return None

    def pre_read(source: Path, target: int) -> None:
        run(_all, hooks, str(source), str(target))

    return pre_read


async def _all(hooks: Sequence[PreReadHook], source: str, version: str) -> None:
    for hook in hooks:
        await hook(source, version)


def _check_arguments(path: str, found: Callable[..., object]) -> None:
    of_class = inspect.getattr_static(type(found), "__call__", found)
    yields = (inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    if any(is_one(of) for is_one in yields for of in (found, of_class)):
        raise ValueError(
            f"{path} yields, and nothing of it would run when it is called; wanted a function or "
            "an async function without yield"
        )
    try:
        signature = inspect.signature(found)
    except ValueError:
        return  # written in C: the first call says
    try:
        signature.bind("", 0)
    except TypeError as error:
        raise ValueError(
            f"{path} takes {signature}, wanted (source_dir, target_version)"
        ) from error


async def _call(found: Operator, source: str, version: str | None) -> None:
    call = partial(found, source, int(version or 0))
    if inspect.iscoroutinefunction(found):
        answer: object = call()
    else:
        answer = await _on_own_thread(call)
    if isinstance(answer, Awaitable):
        await answer


async def _on_own_thread(call: Callable[[], object]) -> object:
    """Neither a cancelled wait nor the end of the process waits for the thread."""
    done: Future[object] = Future()
    done.set_running_or_notify_cancel()

    def work() -> None:
        try:
            done.set_result(on_a_thread(call))
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=work, name="hotswap-pre-read", daemon=True).start()
    return await asyncio.wrap_future(done)
